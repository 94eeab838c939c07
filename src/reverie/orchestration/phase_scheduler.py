"""Says what comes next: a pure state machine over the phases, without clocks, files or tensors.

A cycle is one pass over a phase's hooks in their order. With a ``train_ratio``, the hooks that take a batch run as
often as the ratio allows: the stretch of the list from the first of them to the last of them (or to ``collect``, if
that comes later) is passed again, in rounds, until none is due. Everything else runs once per cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction

from reverie.orchestration.phase_counts import PhaseCounts, Place, Totals, restored_counts
from reverie.orchestration.phases import HookKind, HookSpec, PhaseSpec
from reverie.types import ReverieError, State

Ready = Callable[[HookSpec], bool]
"""Whether the current phase's buffer holds enough for the hook's batch."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Action:
    """One thing to do. Hand it to ``advance`` when it is done."""

    kind: HookKind
    hook: HookSpec
    phase_index: int
    place: Place
    waits_for: int | None = None
    """Position of an update that was due before this action, but whose buffer holds too little."""


class PhaseScheduler:
    """Walks through the phases: ask ``next_action``, do it, tell ``advance``. Everything it remembers is saved."""

    def __init__(self, phases: Sequence[PhaseSpec]) -> None:
        if not phases:
            raise ReverieError("training.phases: the list is empty; add at least one phase.")
        self._phases = tuple(phases)
        self._totals = Totals()
        self._left: list[PhaseCounts] = []
        """What was done in the phases before the current one."""
        self._owed: dict[HookSpec, Fraction] = {}
        """What the ratio still owes after the phases before the current one: no remainder is lost between phases."""
        self._enter(0)
        self._pass_over()

    @property
    def phases(self) -> tuple[PhaseSpec, ...]:
        return self._phases

    @property
    def phase_index(self) -> int:
        """Index of the current phase; the number of phases when all are over."""
        return len(self._phases) if self._is_finished else self._index

    @property
    def totals(self) -> Totals:
        """A copy of the counts over all phases."""
        return replace(self._totals)

    def current_phase(self) -> PhaseSpec | None:
        """The phase that the next action belongs to; None when all are over."""
        return None if self._is_finished else self._phase

    def progress(self) -> float:
        """How far the current phase is, from 0 to 1; 1 when all are over."""
        if self._is_finished:
            return 1.0
        done, duration = self._counts.done_and_duration(self._phase)
        return min(1.0, done / duration)

    def is_evaluation_after(self, phase_index: int) -> bool:
        """Whether the phase of this index has used up its time and the next one only evaluates."""
        following = self._phases[phase_index + 1 :][:1]
        is_over = self.phase_index != phase_index or self.progress() >= 1
        return is_over and any(phase.type == "eval_only" for phase in following)

    def next_action(self, ready: Ready) -> Action | None:
        """What to do now, or None at the end. Asking again gives the same answer and changes nothing.

        The one exception: a phase whose time is up, and whose last due updates are not ready, is left here, because
        nobody else asks ``ready``. The next phase's hooks are asked about only after ``current_phase`` has moved on.
        """
        while not self._is_finished:
            place, waits_for = self._runnable_place(self._counts.place, ready)
            if place is None and self._is_over_at_cycle(self._counts.place.cycle + 1):
                self._complete_cycle()
                continue
            if place is None:
                start = Place(cycle=self._counts.place.cycle + 1)
                place, later = self._runnable_place(start, ready)
                waits_for = later if waits_for is None else waits_for
            assert place is not None, "a phase without a hook that can run must not pass the parser"
            hook = self._phase.hooks[place.position]
            return Action(kind=hook.kind, hook=hook, phase_index=self._index, place=place, waits_for=waits_for)
        return None

    def advance(self, action: Action, *, steps: int = 0) -> None:
        """Record that ``action`` was done; ``steps`` are the agent steps that it collected, over all environments."""
        assert action.phase_index == self.phase_index, "the action is not of the current phase"
        assert steps == 0 or action.kind == "collect", "only collecting yields agent steps"
        counts, place = self._counts, action.place
        if self._begins_when_ready(place.position):
            # Exactly this update is due: the steps before it do not count.
            self._debts[place.position] += action.hook.replayed_steps - self._owed_now(place.position)
            counts.owed[place.position] = str(self._debts[place.position])
        self._totals.cycles += place.cycle - counts.place.cycle
        counts.place = replace(place, position=place.position + 1)
        counts.performed[place.position] += 1
        counts.steps += steps
        counts.updates += action.kind == "update"
        if counts.waits_for is None:
            counts.waits_for = action.waits_for
        self._totals.agent_steps += steps
        self._totals.updates += action.kind == "update"
        self._totals.evaluations += action.kind == "evaluate"
        self._settle()

    def waiting_message(self) -> str | None:
        """Once per phase: a sentence for the user when an update had to wait for the buffer to fill."""
        counts = self._counts
        if counts.waits_for is None or counts.has_reported_wait:
            return None
        counts.has_reported_wait = True
        batch = _batch_text(self._phase.hooks[counts.waits_for])
        return f"Phase '{self._phase.name}': collecting until buffer '{self._phase.buffer}' can make {batch}."

    def get_state(self) -> State:
        """Everything above as plain numbers and strings."""
        return {
            "phase_names": [phase.name for phase in self._phases],
            "phase_index": self._index,
            "left": [asdict(counts) for counts in self._left],
            **asdict(self._counts),
            "totals": asdict(self._totals),
        }

    def set_state(self, state: State) -> None:
        """Continue where ``state`` was taken. Durations may differ: which phases are over is decided anew.

        A phase that was over and is longer now is gone back to, and those after it come again.
        """
        names = [phase.name for phase in self._phases]
        if list(state["phase_names"]) != names:
            raise ReverieError(
                f"training.phases: the checkpoint was made with the phases {', '.join(state['phase_names'])}, but the "
                f"config has {', '.join(names)}; restore the phases of the run or start a new run."
            )
        self._totals = Totals(**state["totals"])
        self._left, self._owed = [], {}
        *earlier, current = [*state["left"], state]
        for index, counts in enumerate(earlier):
            self._restore_phase(index, counts)
            if not self._is_over():
                break
            self._close()
        else:
            self._restore_phase(int(state["phase_index"]), current)
        if self._is_over():
            self._leave()
        else:
            self._settle()

    def _restore_phase(self, index: int, saved: State) -> None:
        self._enter(index)
        if len(saved["performed"]) != len(self._phase.hooks):
            raise ReverieError(
                f"training.phases: the phase '{self._phase.name}' has {len(self._phase.hooks)} hooks, but "
                f"{len(saved['performed'])} in the checkpoint; restore its workflow_hooks or start a new run."
            )
        self._counts = restored_counts(saved)
        self._debts = [Fraction(debt) for debt in saved["owed"]]

    def _is_over(self) -> bool:
        is_between_cycles = self._counts.place.position == 0
        return self._has_all_updates() or (is_between_cycles and self._is_over_at_cycle(self._counts.place.cycle))

    def _enter(self, index: int) -> None:
        self._index = index
        self._phase = phase = self._phases[index]
        self._is_finished = False
        self._debts = [
            self._owed.get(hook, Fraction(0)) if self._is_counted_by_ratio(position) else Fraction(0)
            for position, hook in enumerate(phase.hooks)
        ]
        self._counts = PhaseCounts(performed=[0] * len(phase.hooks), owed=[str(debt) for debt in self._debts])
        counted = [position for position in range(len(phase.hooks)) if self._is_counted_by_ratio(position)]
        collects = [position for position, hook in enumerate(phase.hooks) if hook.kind == "collect"]
        # Without counted hooks the stretch is empty and lies behind the end, where nothing reaches it.
        self._rounds_start = counted[0] if counted else len(phase.hooks) + 1
        self._rounds_stop = max(counted + collects) + 1 if counted else len(phase.hooks) + 1

    def _leave(self) -> None:
        if self._index + 1 < len(self._phases):
            self._close()
            self._enter(self._index + 1)
            self._pass_over()
        else:
            # The last phase keeps its counts: a resume with a longer duration goes on from them.
            self._is_finished = True

    def _pass_over(self) -> None:
        """A phase with the duration 0 does nothing."""
        if self._is_over():
            self._leave()

    def _close(self) -> None:
        """Remember a phase that is over: what was done, and what its ratio still owes to each hook."""
        self._left.append(self._counts)
        for position, hook in enumerate(self._phase.hooks):
            if self._is_counted_by_ratio(position) and not self._begins_when_ready(position):
                self._owed[hook] = self._owed_now(position)

    def _settle(self) -> None:
        """End the cycle when no hook is left that could run, and the phase when its time is up."""
        if self._has_all_updates():
            self._leave()
        elif self._runnable_place(self._counts.place, _always_ready)[0] is None:
            self._complete_cycle()

    def _complete_cycle(self) -> None:
        cycle = self._counts.place.cycle + 1
        self._counts.place = Place(cycle=cycle)
        self._totals.cycles += 1
        if self._is_over_at_cycle(cycle):
            self._leave()

    def _runnable_place(self, place: Place, ready: Ready) -> tuple[Place | None, int | None]:
        """The first hook from ``place`` to the end of its cycle that can run, and the first one that has to wait."""
        position, is_first_round, waits_for = place.position, place.is_first_round, None
        hooks = self._phase.hooks
        while True:
            if position == self._rounds_stop and self._has_counted_work(ready):
                position, is_first_round = self._rounds_start, False
            if position >= len(hooks):
                return None, waits_for
            if self._is_due(position, is_first_round):
                if self._is_ready(hooks[position], ready):
                    return Place(place.cycle, position, is_first_round), waits_for
                waits_for = position if waits_for is None else waits_for
            position += 1

    def _has_counted_work(self, ready: Ready) -> bool:
        return any(
            self._is_counted_by_ratio(position)
            and self._is_due(position, is_first_round=False)
            and self._is_ready(self._phase.hooks[position], ready)
            for position in range(self._rounds_start, self._rounds_stop)
        )

    def _is_counted_by_ratio(self, position: int) -> bool:
        return self._phase.train_ratio is not None and self._phase.hooks[position].batch is not None

    def _owed_now(self, position: int) -> Fraction:
        """Replayed steps that the ratio owes to a hook that it counts."""
        replayed = self._counts.performed[position] * self._phase.hooks[position].replayed_steps
        return self._debts[position] + (self._phase.train_ratio or 0) * self._counts.steps - replayed

    def _begins_when_ready(self, position: int) -> bool:
        """Whether the hook has not run yet and its ratio counts from the moment when it can."""
        hook = self._phase.hooks[position]
        waits = hook.batch is not None and hook.batch.min_windows is not None
        return waits and self._counts.performed[position] == 0 and hook not in self._owed

    def _is_due(self, position: int, is_first_round: bool) -> bool:
        ratio, hook = self._phase.train_ratio, self._phase.hooks[position]
        if ratio is None or hook.batch is None:
            return is_first_round or position >= self._rounds_stop
        if self._begins_when_ready(position):
            return True
        replayed = (self._counts.performed[position] + 1) * hook.replayed_steps - self._debts[position]
        # replayed <= ratio * steps, in whole numbers: no rounding, however long the phase.
        return replayed * ratio.denominator <= ratio.numerator * self._counts.steps

    def _is_ready(self, hook: HookSpec, ready: Ready) -> bool:
        if hook.batch is None or ready(hook):
            return True
        if self._phase.has_hook("collect"):
            return False
        raise ReverieError(
            f"Phase '{self._phase.name}': buffer '{self._phase.buffer}' holds too little for {_batch_text(hook)}, "
            "and this phase does not collect; put an online phase before it, name a fuller buffer or choose a smaller "
            "batch."
        )

    def _has_all_updates(self) -> bool:
        duration = self._phase.duration_updates
        return duration is not None and self._counts.updates >= duration

    def _is_over_at_cycle(self, cycle: int) -> bool:
        """Steps and cycles end a phase between cycles only: the last collected steps still get their updates."""
        if self._phase.duration_steps is not None:
            return self._counts.steps >= self._phase.duration_steps
        return self._phase.duration_cycles is not None and cycle >= self._phase.duration_cycles


def _batch_text(hook: HookSpec) -> str:
    assert hook.batch is not None, "only hooks with a batch wait for a buffer"
    if hook.batch.min_windows is not None:
        return f"{hook.batch.min_windows} windows of {hook.batch.length} ({hook.name})"
    return f"a batch of {hook.batch.size} x {hook.batch.length} ({hook.name})"


def _always_ready(_hook: HookSpec) -> bool:
    return True
