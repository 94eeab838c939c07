"""How often a run will do what: its phases walked by the scheduler itself, without doing anything."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from reverie.orchestration.phase_scheduler import Action, PhaseScheduler
from reverie.orchestration.phases import HookSpec, PhaseSpec
from reverie.orchestration.recurrence import Recurrence
from reverie.types import State


@dataclass(frozen=True, kw_only=True, slots=True)
class Every:
    """What comes at multiples of agent steps, of updates, or of both; None leaves that count out."""

    steps: int | None
    updates: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BufferRoom:
    """What of a buffer decides when updates can begin."""

    streams: int
    stream_length: int
    """Rows of each stream that it can hold."""
    held: int = 0
    """Rows of each stream that are there before the run begins: all of a dataset, none of replay."""

    def rows_needed(self, windows: int, length: int) -> int:
        """Rows of each stream that give so many windows over all streams. Windows may cross episodes here: where they
        may not, the first update comes some rows later."""
        return length - 1 + math.ceil(windows / self.streams)


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseWork:
    """What one phase does. The counts of ``hooks`` are in the order of its list."""

    name: str
    buffer: str | None
    hooks: tuple[tuple[HookSpec, int], ...]
    steps: int

    def count(self, kind: str) -> int:
        return sum(count for hook, count in self.hooks if hook.kind == kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunCounts:
    phases: tuple[PhaseWork, ...]
    evaluations: int
    """Those of phases and those that come by steps or updates."""
    checkpoints: int
    """With the one at the end."""

    @property
    def steps(self) -> int:
        return sum(phase.steps for phase in self.phases)

    def count(self, kind: str) -> int:
        return sum(phase.count(kind) for phase in self.phases)


def run_counts(
    phases: Sequence[PhaseSpec],
    *,
    num_envs: int,
    buffers: Mapping[str, BufferRoom],
    context_rows: int,
    evaluations: Every,
    checkpoints: Every,
) -> RunCounts:
    """The counts of a whole run. ``context_rows`` are those of its workflow."""
    walk = _Walk(phases, num_envs=num_envs, buffers=buffers, context_rows=context_rows)
    return walk.counts(_Recurring(evaluations), _Recurring(checkpoints))


class _Recurring:
    """Counts how often something comes."""

    def __init__(self, every: Every) -> None:
        self._every = every
        self._recurrence = Recurrence(every_steps=every.steps, every_updates=every.updates)
        self.count = 0

    def is_due(self, steps: int, updates: int) -> bool:
        is_due = self._recurrence.is_due(steps, updates)
        self._recurrence.mark(steps, updates)
        return is_due

    def skip_to(self, steps: int, updates: int, *, collects: int) -> None:
        """Count all that comes on the way. One collecting step may pass several multiples, which count once."""
        before = self._recurrence
        if self._every.steps is not None:
            self.count += min(collects, steps // self._every.steps - before.steps // self._every.steps)
        if self._every.updates is not None:
            self.count += updates // self._every.updates - before.updates // self._every.updates
        before.mark(steps, updates)


class _Walk:
    """Walks like the Orchestrator, but in long strides.

    Once every update of a phase is ready, its cycles are alike: at the end of each one every hook that the ratio counts
    has run floor((owed + ratio * steps) / replayed steps) times, and every other hook once more than before. So all
    cycles but the last of a phase are skipped at once, and the scheduler goes on from there.
    """

    def __init__(
        self, phases: Sequence[PhaseSpec], *, num_envs: int, buffers: Mapping[str, BufferRoom], context_rows: int
    ) -> None:
        self._scheduler = PhaseScheduler(phases)
        self._num_envs, self._context_rows = num_envs, context_rows
        self._buffers = buffers
        self._held = {name: room.held for name, room in buffers.items()}
        self._cycles = 0

    def counts(self, evaluations: _Recurring, checkpoints: _Recurring) -> RunCounts:
        scheduler, has_just_saved = self._scheduler, False
        while (action := scheduler.next_action(self._is_ready)) is not None:
            self._perform(action)
            totals = scheduler.totals
            is_due = evaluations.is_due(totals.agent_steps, totals.updates)
            evaluations.count += is_due and not scheduler.is_evaluation_after(action.phase_index)
            has_just_saved = checkpoints.is_due(totals.agent_steps, totals.updates)
            checkpoints.count += has_just_saved
            if totals.cycles != self._cycles:
                self._cycles = totals.cycles
                self._skip(evaluations, checkpoints)
        return RunCounts(
            phases=self._work(),
            evaluations=evaluations.count + scheduler.totals.evaluations,
            checkpoints=checkpoints.count + (not has_just_saved),
        )

    def _perform(self, action: Action) -> None:
        phase, steps = self._scheduler.phases[action.phase_index], 0
        if action.kind == "collect":
            steps = self._num_envs
            self._fill(phase, rows=1)
        self._scheduler.advance(action, steps=steps)

    def _fill(self, phase: PhaseSpec, *, rows: int) -> None:
        if phase.buffer is not None:
            room = self._buffers[phase.buffer]
            self._held[phase.buffer] = min(self._held[phase.buffer] + rows, room.stream_length)

    def _is_ready(self, hook: HookSpec) -> bool:
        phase = self._scheduler.current_phase()
        assert phase is not None, "the scheduler asks about hooks of its current phase"
        if hook.batch is None or phase.buffer is None:
            return True
        length = hook.batch.length + self._context_rows
        return self._held[phase.buffer] >= self._buffers[phase.buffer].rows_needed(hook.batch.windows_needed, length)

    def _skip(self, evaluations: _Recurring, checkpoints: _Recurring) -> None:
        phase = self._scheduler.current_phase()
        if phase is None or not all(self._is_ready(hook) for hook in phase.hooks):
            return
        state = self._scheduler.get_state()
        cycles = _spare_cycles(phase, state, num_envs=self._num_envs) if _is_regular(phase, state) else 0
        if cycles < 1:
            return
        _skip_cycles(phase, state, cycles, num_envs=self._num_envs)
        self._scheduler.set_state(state)
        collects = cycles if phase.has_hook("collect") else 0
        self._fill(phase, rows=collects)
        totals = self._scheduler.totals
        self._cycles = totals.cycles
        for recurring in (evaluations, checkpoints):
            recurring.skip_to(totals.agent_steps, totals.updates, collects=collects)

    def _work(self) -> tuple[PhaseWork, ...]:
        state = self._scheduler.get_state()
        done: list[dict[str, Any]] = [*state["left"], state]
        return tuple(
            PhaseWork(
                name=phase.name,
                buffer=phase.buffer,
                hooks=tuple(zip(phase.hooks, counts["performed"], strict=True)),
                steps=counts["steps"],
            )
            for phase, counts in zip(self._scheduler.phases, done, strict=True)
        )


def _is_regular(phase: PhaseSpec, state: State) -> bool:
    """Whether the scheduler stands between two cycles and every hook that waited for its buffer has begun."""
    waiting = [hook.batch is not None and hook.batch.min_windows is not None for hook in phase.hooks]
    has_begun = all(count or not waits for count, waits in zip(state["performed"], waiting, strict=True))
    return state["place"]["position"] == 0 and has_begun


def _spare_cycles(phase: PhaseSpec, state: State, *, num_envs: int) -> int:
    """Cycles that can be skipped so that at least one is left."""
    if phase.duration_steps is not None:
        return (phase.duration_steps - state["steps"]) // num_envs - 1
    if phase.duration_cycles is not None:
        return phase.duration_cycles - state["place"]["cycle"] - 1
    assert phase.duration_updates is not None, "the parser lets no phase through without a duration"
    rate = sum((_updates_per_cycle(phase, hook, num_envs) for hook in phase.hooks), Fraction(0))
    left = phase.duration_updates - state["updates"] - len(phase.hooks)  # a cycle may make one more of each than usual
    return int(left / rate) - 1


def _updates_per_cycle(phase: PhaseSpec, hook: HookSpec, num_envs: int) -> Fraction:
    if hook.kind != "update":
        return Fraction(0)
    if phase.train_ratio is None or hook.batch is None:
        return Fraction(1)
    return phase.train_ratio * num_envs / hook.replayed_steps


def _skip_cycles(phase: PhaseSpec, state: State, cycles: int, *, num_envs: int) -> None:
    """Change the scheduler's ``state`` to what it is after so many more cycles."""
    before, totals = list(state["performed"]), state["totals"]
    steps = cycles * num_envs if phase.has_hook("collect") else 0
    state["steps"] += steps
    for position, hook in enumerate(phase.hooks):
        if phase.train_ratio is None or hook.batch is None:
            state["performed"][position] += cycles
        else:
            owed = Fraction(state["owed"][position]) + phase.train_ratio * state["steps"]
            state["performed"][position] = max(before[position], owed // hook.replayed_steps)
    gained = {"update": 0, "evaluate": 0, "collect": 0}
    for hook, now, then in zip(phase.hooks, state["performed"], before, strict=True):
        gained[hook.kind] += now - then
    state["updates"] += gained["update"]
    state["place"]["cycle"] += cycles
    totals["agent_steps"] += steps
    totals["updates"] += gained["update"]
    totals["evaluations"] += gained["evaluate"]
    totals["cycles"] += cycles
