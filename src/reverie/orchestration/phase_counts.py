"""What the scheduler counts: where it is in a phase, what was done there, and what was done in all."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from reverie.orchestration.phases import PhaseSpec
from reverie.types import State


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a phase: completed cycles, index into the hooks, and whether this is the cycle's first round."""

    cycle: int = 0
    position: int = 0
    is_first_round: bool = True


@dataclass(slots=True)
class Totals:
    """Counts over all phases."""

    agent_steps: int = 0
    updates: int = 0
    cycles: int = 0
    evaluations: int = 0


@dataclass(slots=True)
class PhaseCounts:
    """What was done in one phase."""

    performed: list[int]
    owed: list[str]
    """Replayed steps, as exact fractions, that an earlier phase was owed for the same hook and batch."""
    place: Place = field(default_factory=Place)
    steps: int = 0
    updates: int = 0
    waits_for: int | None = None
    has_reported_wait: bool = False

    def done_and_duration(self, phase: PhaseSpec) -> tuple[int, int]:
        """How far ``phase`` is and how far it goes, in the unit of its duration."""
        if phase.duration_steps is not None:
            return self.steps, phase.duration_steps
        if phase.duration_updates is not None:
            return self.updates, phase.duration_updates
        assert phase.duration_cycles is not None, "the parser lets no phase through without a duration"
        return self.place.cycle, phase.duration_cycles


def restored_counts(saved: State) -> PhaseCounts:
    """The counts whose ``dataclasses.asdict`` was saved, perhaps among other things."""
    counts = PhaseCounts(**{one.name: saved[one.name] for one in fields(PhaseCounts)})
    counts.performed, counts.place = list(saved["performed"]), Place(**saved["place"])
    return counts
