"""Ctrl-C and SIGTERM: asked once, the loop finishes its step and saves; a second Ctrl-C leaves at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType, TracebackType

from reverie.orchestration.display import restore_terminal

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """While active, remembers the first signal instead of dying of it."""

    def __init__(self) -> None:
        self.received: int | None = None

    def __enter__(self) -> StopSignals:
        # Python delivers signals to the main thread only; elsewhere the caller's own handling stays.
        self._is_active = threading.current_thread() is threading.main_thread()
        if self._is_active:
            self._previous = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_active:
            for number, handler in self._previous.items():
                signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.received is not None:
            restore_terminal()
            os._exit(130)
        self.received = self.received or number
