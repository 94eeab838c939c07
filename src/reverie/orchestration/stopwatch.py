"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

KINDS = ("env", "policy", "replay", "update", "evaluate", "checkpoint")


class Stopwatch:
    """Seconds by kind of work in this process, and the wall time of the run over all of its processes."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        self._start = time.perf_counter()
        self._before = 0.0

    @property
    def elapsed_seconds(self) -> float:
        """Since this process began."""
        return time.perf_counter() - self._start

    @property
    def wall_seconds(self) -> float:
        """Since the run began, not counting the time when no process was running it."""
        return self._before + self.elapsed_seconds

    def continue_from(self, wall_seconds: float) -> None:
        self._before = wall_seconds - self.elapsed_seconds

    def add(self, kind: str, seconds: float) -> None:
        self._seconds[kind] += seconds

    def seconds(self, kind: str) -> float:
        """Spent in this process on that kind of work."""
        return self._seconds[kind]

    @contextmanager
    def measuring(self, kind: str) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[kind] += time.perf_counter() - start

    def shares(self) -> dict[str, float]:
        """Fraction of this process's time by kind; ``other`` is the rest."""
        total = max(self.elapsed_seconds, 1e-9)
        shares = {kind: seconds / total for kind, seconds in self._seconds.items()}
        return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}
