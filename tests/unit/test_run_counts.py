"""What a run will do is counted as the scheduler does it, step by step, only faster."""

from __future__ import annotations

from typing import Any

import pytest

from reverie.orchestration.phase_scheduler import PhaseScheduler
from reverie.orchestration.phases import HookSpec, PhaseSpec, parse_phases
from reverie.orchestration.recurrence import Recurrence
from reverie.orchestration.run_counts import BufferRoom, Every, RunCounts, run_counts

UPDATE = {"update": {"batch": {"size": 3, "length": 6}}}
OTHER = {"update_controller": {"batch": {"size": 2, "length": 7}}}
FINAL = {"name": "end", "type": "eval_only", "duration_cycles": 1, "workflow_hooks": ["evaluate"]}
CONTEXT_ROWS = 1


def online(**more: Any) -> dict[str, Any]:
    given = {"name": "learn", "type": "online", "buffer": "replay", "workflow_hooks": ["collect", UPDATE]}
    return given | more


RUNS: dict[str, list[dict[str, Any]]] = {
    "a ratio": [online(duration_steps=1500, train_ratio=2.7), FINAL],
    "a ratio from when replay is ready": [online(duration_steps=1500, train_ratio=7, ratio_from="ready"), FINAL],
    "no ratio": [online(duration_steps=800)],
    "two hooks with a ratio": [online(duration_steps=997, train_ratio=0.31, workflow_hooks=["collect", UPDATE, OTHER])],
    "as many updates": [online(duration_updates=333, train_ratio=1.3)],
    "as many cycles, with evaluations": [
        online(duration_cycles=150, train_ratio=5, workflow_hooks=["collect", UPDATE, "evaluate"])
    ],
    "prefill, learn, study": [
        online(name="prefill", duration_steps=64, workflow_hooks=["collect"]),
        online(duration_steps=400, train_ratio=2.7),
        {**online(duration_updates=55), "name": "study", "type": "offline", "workflow_hooks": [UPDATE, OTHER]},
        FINAL,
    ],
    "repeats": [
        {"repeat": 3, "phases": [online(duration_steps=203, train_ratio=2.7), online(name="b", duration_updates=20)]},
        FINAL,
    ],
}


def walked(phases: tuple[PhaseSpec, ...], *, num_envs: int, room: BufferRoom, every: int) -> dict[str, int]:
    """The same run as the Orchestrator's loop makes it, one action after the other."""
    scheduler, held, found = PhaseScheduler(phases), 0, {"collect": 0, "update": 0, "evaluate": 0, "periodic": 0}
    evaluations = Recurrence(every_steps=every, every_updates=None)

    def is_ready(hook: HookSpec) -> bool:
        assert hook.batch is not None
        starts = min(held, room.stream_length) - (hook.batch.length + CONTEXT_ROWS) + 1
        return starts > 0 and starts * room.streams >= hook.batch.windows_needed

    while (action := scheduler.next_action(is_ready)) is not None:
        held += action.kind == "collect"
        found[action.kind] += 1
        scheduler.advance(action, steps=num_envs if action.kind == "collect" else 0)
        if evaluations.is_due(scheduler.totals.agent_steps, scheduler.totals.updates):
            found["periodic"] += not scheduler.is_evaluation_after(action.phase_index)
            evaluations.mark(scheduler.totals.agent_steps, scheduler.totals.updates)
    return found


def counted(phases: tuple[PhaseSpec, ...], *, num_envs: int, room: BufferRoom, every: int) -> RunCounts:
    return run_counts(
        phases,
        num_envs=num_envs,
        buffers={"replay": room},
        context_rows=CONTEXT_ROWS,
        evaluations=Every(steps=every),
        checkpoints=Every(steps=every, updates=10),
    )


@pytest.mark.parametrize("every", [7, 40, 1500])
@pytest.mark.parametrize("num_envs", [1, 4, 16])
@pytest.mark.parametrize("name", RUNS)
def test_counts_are_those_of_the_scheduler(name: str, num_envs: int, every: int) -> None:
    phases = parse_phases(RUNS[name])
    room = BufferRoom(streams=num_envs, stream_length=160 // num_envs)
    expected = walked(phases, num_envs=num_envs, room=room, every=every)
    found = counted(phases, num_envs=num_envs, room=room, every=every)
    assert {kind: found.count(kind) for kind in ("collect", "update", "evaluate")} == {
        kind: expected[kind] for kind in ("collect", "update", "evaluate")
    }
    assert found.evaluations == expected["evaluate"] + expected["periodic"]
    assert found.steps == expected["collect"] * num_envs


def test_a_very_long_run_is_counted_at_once() -> None:
    """100 million steps: walked one by one this would take an hour."""
    phases = parse_phases([online(duration_steps=10**8, train_ratio=9)])
    found = counted(phases, num_envs=1, room=BufferRoom(streams=1, stream_length=10**6), every=10**6)
    assert (found.steps, found.count("update")) == (10**8, 10**8 // 2)
    assert found.evaluations == 100


def test_every_phase_is_told_apart() -> None:
    found = counted(parse_phases(RUNS["repeats"]), num_envs=1, room=BufferRoom(streams=1, stream_length=160), every=7)
    assert [phase.name for phase in found.phases] == ["learn#1", "b#1", "learn#2", "b#2", "learn#3", "b#3", "end"]
    assert [phase.count("update") for phase in found.phases[1:6:2]] == [20, 20, 20]


def test_the_checkpoint_at_the_end_is_not_made_twice() -> None:
    """Every 10 updates: after the last of 330 it has just been saved, after the last of 333 it has not."""
    for duration, expected in ((330, 33), (333, 34)):
        phase = {**online(duration_updates=duration), "type": "offline", "workflow_hooks": [UPDATE]}
        room = BufferRoom(streams=1, stream_length=160, held=160)
        assert counted(parse_phases([phase]), num_envs=0, room=room, every=7).checkpoints == expected
