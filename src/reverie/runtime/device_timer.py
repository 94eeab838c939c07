"""How long stretches of work take a CUDA device: asked of the device, and never waited for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None: ...

    def query(self) -> bool: ...

    def elapsed_time(self, end_event: Any, /) -> float: ...


def _cuda_event() -> Event:
    return torch.cuda.Event(enable_timing=True)


class DeviceTimer:
    """Adds up the stretches that are finished; the others are counted when they are."""

    def __init__(self, make_event: Callable[[], Event] = _cuda_event) -> None:
        self._make_event = make_event
        self._open: deque[tuple[Event, Event]] = deque()
        """Begin and end of each stretch that was not counted yet, in the order in which the device comes to them."""
        self._spare: list[tuple[Event, Event]] = []
        self._seconds = 0.0

    @contextmanager
    def measuring(self) -> Iterator[None]:
        begin, end = self._spare.pop() if self._spare else (self._make_event(), self._make_event())
        begin.record()
        try:
            yield
        finally:
            end.record()
            self._open.append((begin, end))

    @property
    def seconds(self) -> float:
        """Of all stretches that the device has finished by now."""
        while self._open and self._open[0][1].query():
            begin, end = self._open.popleft()
            self._seconds += begin.elapsed_time(end) / 1000
            self._spare.append((begin, end))
        return self._seconds
