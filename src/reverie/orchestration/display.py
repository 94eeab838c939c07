"""What a person sees while a run trains: a calm panel in a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol

from rich.console import Console
from rich.live import Live

from reverie.orchestration.panel import Progress, neighbour_means, plain_line, progress_panel


class Display(Protocol):
    """``update`` may be called after every step; ``is_due`` lets the caller skip making a ``Progress`` for nothing."""

    def start(self) -> None: ...

    def is_due(self) -> bool: ...

    def update(self, progress: Progress) -> None: ...

    def say(self, message: str) -> None: ...

    def stop(self) -> None:
        """Show the last progress and leave the terminal as it was."""
        ...


def make_display(console: Console | None = None) -> Display:
    """The live panel where it can be drawn: on a terminal that moves its cursor and knows the characters."""
    console = console or Console()
    can_draw = console.file.isatty() and not console.is_dumb_terminal and console.encoding.startswith("utf")
    return LiveDisplay(console) if can_draw else PlainDisplay(console)


def restore_terminal() -> None:
    """Give the cursor and the colours back. Safe in a signal handler, just before ``os._exit``."""
    if sys.stdout.isatty():
        os.write(sys.stdout.fileno(), b"\x1b[0m\x1b[?25h\n")


class _PacedDisplay(ABC):
    """Shows the newest progress when ``interval`` seconds have passed since the last time."""

    def __init__(self, *, interval: float, clock: Callable[[], float]) -> None:
        self._interval = interval
        self._clock = clock
        self._next_time = -math.inf
        self._unseen: Progress | None = None

    def is_due(self) -> bool:
        return self._clock() >= self._next_time

    def update(self, progress: Progress) -> None:
        self._unseen = progress
        if self.is_due():
            self._show_unseen()
            self._wait()

    def _wait(self) -> None:
        self._next_time = self._clock() + self._interval

    def _show_unseen(self) -> None:
        if self._unseen is not None:
            self._show(self._unseen)
            self._unseen = None

    @abstractmethod
    def _show(self, progress: Progress) -> None: ...


class PlainDisplay(_PacedDisplay):
    """One line of plain text every ``every_seconds``, one per message, and a last one at the end."""

    def __init__(
        self, console: Console, *, every_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(interval=every_seconds, clock=clock)
        self._file = console.file

    def start(self) -> None:
        self._wait()

    def say(self, message: str) -> None:
        printable = "".join(letter if letter.isprintable() else " " for letter in message)
        print(printable, file=self._file, flush=True)

    def stop(self) -> None:
        self._show_unseen()

    def _show(self, progress: Progress) -> None:
        self.say(plain_line(progress))


class LiveDisplay(_PacedDisplay):
    """A panel redrawn in place by the caller's own thread, at most ``refreshes_per_second`` times a second."""

    def __init__(
        self,
        console: Console,
        *,
        refreshes_per_second: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(interval=1.0 / refreshes_per_second, clock=clock)
        self._console = console
        self._scores = ScoreHistory()
        # No refresh thread: nothing must run beside the training step or hold a lock when a signal arrives.
        self._live = Live(console=console, auto_refresh=False)

    def start(self) -> None:
        self._live.start()

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def stop(self) -> None:
        self._show_unseen()
        self._live.stop()

    def _show(self, progress: Progress) -> None:
        self._scores.add(progress)
        self._live.update(progress_panel(progress, self._scores.values), refresh=True)


class ScoreHistory:
    """The scores of the whole run in bounded space: when it is full, neighbours are averaged."""

    def __init__(self, capacity: int = 256) -> None:
        self.values: list[float] = []
        self._capacity = capacity
        self._stride = 1
        self._next_episode = 1

    def add(self, progress: Progress) -> None:
        score = progress.score_now
        if score is None or not math.isfinite(score) or progress.episodes < self._next_episode:
            return
        self.values.append(score)
        if len(self.values) >= self._capacity:
            self.values = neighbour_means(self.values, len(self.values) // 2)
            self._stride *= 2
        self._next_episode = progress.episodes + self._stride
