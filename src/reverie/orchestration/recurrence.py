"""What comes again and again: at multiples of agent steps, of updates, or of both. Never by the clock."""

from __future__ import annotations


class Recurrence:
    def __init__(self, *, every_steps: int | None, every_updates: int | None) -> None:
        """None leaves that count out."""
        self._every_steps, self._every_updates = every_steps, every_updates
        self.steps = 0
        self.updates = 0

    def is_due(self, steps: int, updates: int) -> bool:
        """Whether a multiple was reached or passed since the last ``mark``."""
        return _passed(self._every_steps, self.steps, steps) or _passed(self._every_updates, self.updates, updates)

    def mark(self, steps: int, updates: int) -> None:
        """It was done at these counts, or these are as far as anybody has looked."""
        self.steps, self.updates = steps, updates


def _passed(every: int | None, before: int, now: int) -> bool:
    return every is not None and now // every > before // every
