"""Where the time of a run goes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from reverie.runtime.device_timer import DeviceTimer

KINDS = ("env", "policy", "replay", "update", "evaluate", "checkpoint")
ASIDE = ("evaluate", "checkpoint")
"""Kinds that the device waits for."""


class Stopwatch:
    """Seconds by kind of work in this process, and the wall time of the run over all of its processes.

    With a timer, updates are timed on the device: the host has other things to do meanwhile, so that the shares of its
    own work and those of the device overlap.
    """

    def __init__(self, device_timer: DeviceTimer | None = None) -> None:
        self._seconds: dict[str, float] = dict.fromkeys(KINDS, 0.0)
        self._start = time.perf_counter()
        self._before = 0.0
        self._timer = device_timer
        self._line_began = (0.0, 0.0)
        """Seconds since this process began without those aside, and of updates, when the last line was written."""

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
        if kind == "update" and self._timer is not None:
            return self._timer.seconds
        return self._seconds[kind]

    @contextmanager
    def measuring(self, kind: str) -> Iterator[None]:
        if kind == "update" and self._timer is not None:
            with self._timer.measuring():
                yield
            return
        start = time.perf_counter()
        try:
            yield
        finally:
            self._seconds[kind] += time.perf_counter() - start

    def shares(self) -> dict[str, float]:
        """Fraction of this process's time by kind.

        ``other`` is the rest of it; ``idle``, where updates are timed on a device, is the time in which that made none
        and could have: neither an evaluation nor a checkpoint came between.
        """
        total = max(self.elapsed_seconds, 1e-9)
        shares = {kind: self.seconds(kind) / total for kind in KINDS}
        if self._timer is None:
            return shares | {"other": max(0.0, 1.0 - sum(shares.values()))}
        return shares | {"idle": max(0.0, 1.0 - shares["update"] - sum(shares[kind] for kind in ASIDE))}

    def line_shares(self) -> dict[str, float]:
        """``shares``, and with a timer ``learning``: updates since the last call over the time without those aside."""
        shares = self.shares()
        if self._timer is None:
            return shares
        now = (self.elapsed_seconds - sum(self._seconds[kind] for kind in ASIDE), self._timer.seconds)
        spent, updating = (one - before for one, before in zip(now, self._line_began, strict=True))
        self._line_began = now
        return shares | {"learning": updating / max(spent, 1e-9)}
