"""What a person sees while a run trains: a calm panel in a terminal, plain lines anywhere else."""

from __future__ import annotations

import math
import os
import sys
import time
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


class PlainDisplay:
    """One line of plain text every ``every_seconds``, one per message, and a last one at the end."""

    def __init__(
        self, console: Console, *, every_seconds: float = 10.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._file = console.file
        self._every_seconds = every_seconds
        self._clock = clock
        self._next_time = clock() + every_seconds
        self._unseen: Progress | None = None

    def start(self) -> None:
        self._next_time = self._clock() + self._every_seconds

    def is_due(self) -> bool:
        return self._clock() >= self._next_time

    def update(self, progress: Progress) -> None:
        self._unseen = progress
        if self._clock() >= self._next_time:
            self._show()
            self._next_time = self._clock() + self._every_seconds

    def say(self, message: str) -> None:
        printable = "".join(letter if letter.isprintable() else " " for letter in message)
        print(printable, file=self._file, flush=True)

    def stop(self) -> None:
        self._show()

    def _show(self) -> None:
        if self._unseen is not None:
            self.say(plain_line(self._unseen))
            self._unseen = None


class LiveDisplay:
    """A panel redrawn in place by the caller's own thread, at most ``refreshes_per_second`` times a second."""

    def __init__(
        self,
        console: Console,
        *,
        refreshes_per_second: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console
        self._interval = 1.0 / refreshes_per_second
        self._clock = clock
        self._next_time = 0.0
        self._scores = ScoreHistory()
        self._unseen: Progress | None = None
        # No refresh thread: nothing must run beside the training step or hold a lock when a signal arrives.
        self._live = Live(console=console, auto_refresh=False)

    def start(self) -> None:
        self._live.start()

    def is_due(self) -> bool:
        return self._clock() >= self._next_time

    def update(self, progress: Progress) -> None:
        self._unseen = progress
        if self._clock() >= self._next_time:
            self._show()
            self._next_time = self._clock() + self._interval

    def say(self, message: str) -> None:
        self._console.print(message, markup=False, highlight=False)

    def stop(self) -> None:
        self._show()
        self._live.stop()

    def _show(self) -> None:
        if self._unseen is not None:
            self._scores.add(self._unseen)
            self._live.update(progress_panel(self._unseen, self._scores.values), refresh=True)
            self._unseen = None


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
