"""The scheduler's order, durations, ratio and saved state."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.orchestration.phase_scheduler import PhaseScheduler
from reverie.orchestration.phases import HookSpec, parse_phases
from reverie.types import ReverieError


def always(_hook: HookSpec) -> bool:
    return True


def never(_hook: HookSpec) -> bool:
    return False


def update(size: int = 2, length: int = 4, name: str = "update") -> dict[str, Any]:
    return {name: {"batch": {"size": size, "length": length}}}


def online(**keys: Any) -> dict[str, Any]:
    phase = {"name": "learn", "type": "online", "buffer": "replay", "workflow_hooks": ["collect", update()]}
    return phase | ({} if any(key.startswith("duration") for key in keys) else {"duration_steps": 10}) | keys


def ran(
    scheduler: PhaseScheduler, ready: Callable[[HookSpec], bool] = always, *, envs: int = 1, limit: int = 10_000
) -> list[str]:
    """Names of the hooks that ran, up to the end or ``limit``."""
    names: list[str] = []
    while len(names) < limit and (action := scheduler.next_action(ready)) is not None:
        scheduler.advance(action, steps=envs if action.kind == "collect" else 0)
        names.append(action.hook.name)
    return names


def scheduler_of(*items: dict[str, Any]) -> PhaseScheduler:
    return PhaseScheduler(parse_phases(list(items)))


OFFLINE = {"name": "fit", "type": "offline", "buffer": "replay", "workflow_hooks": [update()], "duration_updates": 1}
EVAL = {"name": "test", "type": "eval_only", "workflow_hooks": ["evaluate"], "duration_cycles": 1}


# Durations and order


def test_without_a_ratio_each_hook_runs_once_per_cycle_in_order() -> None:
    hooks = ["evaluate", "collect", update(), "refresh", update(name="update_controller")]
    scheduler = scheduler_of(online(duration_cycles=2, workflow_hooks=hooks))
    assert ran(scheduler) == ["evaluate", "collect", "update", "refresh", "update_controller"] * 2
    totals = scheduler.totals
    assert (totals.agent_steps, totals.updates, totals.cycles, totals.evaluations) == (2, 6, 2, 2)


def test_with_a_ratio_the_hooks_with_a_batch_run_in_rounds_and_the_rest_once() -> None:
    hooks = ["collect", update(1, 4), "refresh", update(1, 8, "update_controller"), "evaluate"]
    scheduler = scheduler_of(online(duration_cycles=1, train_ratio=16, workflow_hooks=hooks))
    assert ran(scheduler) == [
        *("collect", "update", "refresh", "update_controller"),
        *("update", "update_controller", "update", "update", "evaluate"),
    ]


def test_a_ratio_from_ready_counts_from_the_first_update_and_makes_up_for_nothing() -> None:
    """As the reference: nothing is owed for the steps before the buffer was ready."""
    hooks = ["collect", update(2, 4)]
    scheduler = scheduler_of(online(duration_steps=12, train_ratio=2, ratio_from="ready", workflow_hooks=hooks))
    (hook,) = (hook for hook in scheduler.phases[0].hooks if hook.batch is not None)
    assert hook.batch is not None
    assert hook.batch.windows_needed == 8
    names: list[str] = []
    while (action := scheduler.next_action(lambda _: scheduler.totals.agent_steps >= 5)) is not None:
        scheduler.advance(action, steps=1 if action.kind == "collect" else 0)
        names.append(action.hook.name)
        scheduler.set_state(json.loads(json.dumps(scheduler.get_state())))
    assert names == [*["collect"] * 5, "update", *["collect"] * 4, "update", *["collect"] * 3]


def test_a_ratio_that_has_begun_goes_on_in_the_next_phase() -> None:
    phase = online(duration_steps=6, train_ratio=2, ratio_from="ready", workflow_hooks=["collect", update(2, 4)])
    names = ran(scheduler_of({"repeat": 2, "phases": [phase]}))
    assert "".join(name[0] for name in names) == "cu" + "ccccu" + "ccccu" + "ccc"


def test_a_ratio_that_never_became_ready_owes_nothing_to_the_next_phase() -> None:
    phase = online(duration_steps=6, train_ratio=2, ratio_from="ready", workflow_hooks=["collect", update(2, 4)])
    scheduler = scheduler_of({"repeat": 2, "phases": [phase]})
    names = ran(scheduler, lambda _: scheduler.totals.agent_steps >= 8)
    assert names == [*["collect"] * 8, "update", *["collect"] * 4, "update"]


def test_an_update_listed_before_collect_is_still_paid_in_full() -> None:
    hooks = [update(1, 4), "collect", "evaluate"]
    scheduler = scheduler_of(online(duration_steps=2, train_ratio=8, workflow_hooks=hooks))
    assert ran(scheduler) == ["collect", "update", "update", "evaluate"] * 2


def test_steps_end_a_phase_only_after_the_last_steps_were_learned_from() -> None:
    scheduler = scheduler_of(online(duration_steps=10), EVAL)
    assert ran(scheduler, envs=4) == ["collect", "update"] * 3 + ["evaluate"]
    assert scheduler.totals.agent_steps == 12
    assert scheduler.phase_index == 2
    assert scheduler.current_phase() is None
    assert scheduler.progress() == 1.0


@pytest.mark.parametrize("duration", [1, 2, 3, 4, 5])
def test_updates_end_a_phase_exactly(duration: int) -> None:
    hooks = ["collect", update(), update(name="update_controller")]
    scheduler = scheduler_of(online(duration_updates=duration, workflow_hooks=hooks))
    assert sum(name != "collect" for name in ran(scheduler)) == duration
    assert scheduler.totals.updates == duration


def test_an_offline_and_an_evaluating_phase_need_no_steps() -> None:
    scheduler = scheduler_of(OFFLINE | {"duration_updates": 3}, EVAL | {"duration_cycles": 2})
    assert ran(scheduler) == ["update"] * 3 + ["evaluate"] * 2
    assert scheduler.totals.agent_steps == 0


def test_the_ratio_is_exact_over_a_whole_run() -> None:
    scheduler = scheduler_of({"repeat": 10, "phases": [online(duration_steps=3, train_ratio=4)]})
    # Each phase allows 12 replayed steps and one batch has 8: the remainders add up to further updates.
    assert ran(scheduler).count("update") == 10 * 3 * 4 // 8


def test_what_a_phase_is_owed_survives_a_resume() -> None:
    phases = {"repeat": 10, "phases": [online(duration_steps=3, train_ratio=4)]}
    whole = ran(scheduler_of(phases))
    first = scheduler_of(phases)
    done = []
    for _ in range(len(whole) // 2):
        action = first.next_action(lambda hook: True)
        assert action is not None
        first.advance(action, steps=1 if action.kind == "collect" else 0)
        done.append(action.hook.name)
    second = scheduler_of(phases)
    second.set_state(first.get_state())
    assert done + ran(second) == whole


def test_progress_and_phase_follow_the_actions() -> None:
    scheduler = scheduler_of(online(duration_steps=4), EVAL)
    seen = []
    while (action := scheduler.next_action(always)) is not None:
        phase = scheduler.current_phase()
        assert phase is not None
        assert scheduler.phase_index == action.phase_index
        seen.append((phase.name, scheduler.progress()))
        scheduler.advance(action, steps=2 if action.kind == "collect" else 0)
    assert seen == [("learn", 0.0), ("learn", 0.5), ("learn", 0.5), ("learn", 1.0), ("test", 0.0)]


def test_an_action_of_another_phase_or_steps_without_collecting_are_refused() -> None:
    scheduler = scheduler_of(EVAL, OFFLINE)
    action = scheduler.next_action(always)
    assert action is not None
    with pytest.raises(AssertionError, match="agent steps"):
        scheduler.advance(action, steps=1)
    scheduler.advance(action)
    with pytest.raises(AssertionError, match="current phase"):
        scheduler.advance(action)


# Waiting for the buffer


def test_collecting_goes_on_while_the_buffer_holds_too_little_and_says_so_once() -> None:
    scheduler = scheduler_of({"repeat": 2, "phases": [online(duration_steps=4)]})
    messages = []
    while (action := scheduler.next_action(never)) is not None:
        scheduler.advance(action, steps=action.kind == "collect")
        messages.append(scheduler.waiting_message())
    assert scheduler.totals.agent_steps == 8
    assert scheduler.totals.updates == 0
    assert scheduler.totals.cycles == 8
    told = [message for message in messages if message is not None]
    assert len(told) == 2
    assert "'learn#1'" in told[0]
    assert "collecting until buffer 'replay' can make a batch of 2 x 4 (update)" in told[0]
    assert "'learn#2'" in told[1]


def test_nothing_is_said_when_no_update_waits() -> None:
    scheduler = scheduler_of(online())
    ran(scheduler, limit=6)
    assert scheduler.waiting_message() is None


def test_the_debt_of_the_waiting_time_is_paid_as_soon_as_the_buffer_is_ready() -> None:
    scheduler = scheduler_of(online(duration_steps=20, train_ratio=8))
    assert ran(scheduler, never, limit=5) == ["collect"] * 5
    assert ran(scheduler, limit=5) == ["update"] * 5
    assert ran(scheduler) == ["collect", "update"] * 15


def test_an_offline_phase_with_too_little_data_is_an_error() -> None:
    with pytest.raises(ReverieError, match="'fit': buffer 'replay' holds too little for a batch of 2 x 4"):
        scheduler_of(OFFLINE).next_action(never)


def test_readiness_is_asked_about_the_phase_that_is_current() -> None:
    """Also when a phase ends with updates that never became ready and the next one starts with an update."""
    scheduler = scheduler_of(online(duration_steps=2), OFFLINE | {"buffer": "archive"})

    def ready(_hook: HookSpec) -> bool:
        phase = scheduler.current_phase()
        return phase is not None and phase.buffer == "archive"

    assert ran(scheduler, ready) == ["collect", "collect", "update"]


hook_lists = st.permutations(["collect", update(1, 3), update(2, 2, "update_controller"), "refresh", "evaluate"])
ratios = st.one_of(st.integers(1, 200), st.sampled_from([0.1, 0.3, 0.7, 1.1, 2.5, 33.3, 1e-05]))


@settings(max_examples=80, deadline=None)
@given(
    ratio=ratios,
    batches=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3),
    envs=st.integers(1, 7),
    duration=st.integers(1, 60),
    ready_after=st.integers(0, 50),
)
def test_the_ratio_is_exact(
    ratio: float, batches: list[tuple[int, int]], envs: int, duration: int, ready_after: int
) -> None:
    hooks = ["collect", *(update(size, length, f"update_{index}") for index, (size, length) in enumerate(batches))]
    scheduler = scheduler_of(online(duration_steps=duration, train_ratio=ratio, workflow_hooks=hooks))
    names = ran(scheduler, lambda _: scheduler.totals.agent_steps >= ready_after, envs=envs, limit=10**6)
    steps = -(-duration // envs) * envs
    assert scheduler.totals.agent_steps == steps
    for index, (size, length) in enumerate(batches):
        expected = Fraction(str(ratio)) * steps // (size * length) if steps >= ready_after else 0
        assert names.count(f"update_{index}") == expected


@settings(max_examples=80, deadline=None)
@given(
    hooks=hook_lists,
    ratio=st.one_of(st.none(), st.integers(1, 12), st.just(0.7)),
    duration=st.sampled_from(["duration_steps", "duration_updates", "duration_cycles"]),
    amount=st.integers(1, 12),
    envs=st.integers(1, 3),
    cut=st.integers(0, 120),
    ready_after=st.integers(0, 8),
)
def test_a_saved_state_continues_identically(
    hooks: list[Any], ratio: float | None, duration: str, amount: int, envs: int, cut: int, ready_after: int
) -> None:
    phase = online(workflow_hooks=hooks, train_ratio=ratio, **{duration: amount})
    phases = parse_phases([{"repeat": 2, "phases": [phase]}, EVAL, phase | {"name": "last"}])

    def traced(scheduler: PhaseScheduler, limit: int) -> list[tuple[int, str, str | None]]:
        trace: list[tuple[int, str, str | None]] = []

        def ready(_hook: HookSpec) -> bool:
            return scheduler.totals.agent_steps >= ready_after

        while len(trace) < limit and (action := scheduler.next_action(ready)) is not None:
            before = scheduler.get_state()
            assert scheduler.next_action(ready) == action
            assert scheduler.get_state() == before
            scheduler.advance(action, steps=envs if action.kind == "collect" else 0)
            trace.append((action.phase_index, action.hook.name, scheduler.waiting_message()))
        return trace

    whole = PhaseScheduler(phases)
    expected = traced(whole, 10_000)
    first, second = PhaseScheduler(phases), PhaseScheduler(phases)
    start = traced(first, cut)
    second.set_state(json.loads(json.dumps(first.get_state())))
    assert second.get_state() == first.get_state()
    assert start + traced(second, 10_000) == expected
    assert second.get_state() == whole.get_state()


@settings(max_examples=60, deadline=None)
@given(
    hooks=hook_lists,
    ratio=st.one_of(st.none(), st.integers(1, 12)),
    duration=st.sampled_from(["duration_steps", "duration_updates", "duration_cycles"]),
    amounts=st.tuples(st.integers(1, 15), st.integers(1, 15)),
    envs=st.integers(1, 3),
)
def test_a_finished_run_extended_is_the_longer_run(
    hooks: list[Any], ratio: float | None, duration: str, amounts: tuple[int, int], envs: int
) -> None:
    phase = online(workflow_hooks=hooks, train_ratio=ratio)
    del phase["duration_steps"]
    short, long = (scheduler_of(phase | {duration: amount}) for amount in (amounts[0], sum(amounts)))
    start = ran(short, envs=envs)
    extended = scheduler_of(phase | {duration: sum(amounts)})
    extended.set_state(short.get_state())
    assert start + ran(extended, envs=envs) == ran(long, envs=envs)
    assert extended.get_state() == long.get_state()


def test_a_shorter_duration_ends_the_phase_on_resume() -> None:
    first = scheduler_of(online(duration_steps=10), EVAL)
    ran(first, limit=8)
    second = scheduler_of(online(duration_steps=3), EVAL)
    second.set_state(first.get_state())
    assert ran(second) == ["evaluate"]
    assert second.totals.agent_steps == 4


def test_a_state_of_other_phases_is_refused() -> None:
    state = scheduler_of(online()).get_state()
    with pytest.raises(ReverieError, match=r"made with the phases learn, but the config has learn, test"):
        scheduler_of(online(), EVAL).set_state(state)


def test_a_state_with_other_hooks_is_refused() -> None:
    state = scheduler_of(online()).get_state()
    with pytest.raises(ReverieError, match="has 1 hooks, but 2 in the checkpoint"):
        scheduler_of(online(workflow_hooks=["collect"])).set_state(state)


def test_the_state_shares_nothing_with_the_scheduler() -> None:
    scheduler = scheduler_of(online())
    state = scheduler.get_state()
    kept = copy.deepcopy(state)
    ran(scheduler, limit=4)
    assert state == kept
    scheduler.set_state(state)
    ran(scheduler, limit=4)
    assert state == kept


@pytest.mark.parametrize("where", ["begin", "middle", "end", "all"])
def test_phases_of_length_zero_are_passed_over(where: str) -> None:
    nothing = {"name": "nothing", **{key: value for key, value in OFFLINE.items() if key != "name"}}
    nothing["duration_updates"] = 0
    phases = {
        "begin": [nothing, OFFLINE, EVAL],
        "middle": [OFFLINE, nothing, EVAL],
        "end": [OFFLINE, EVAL, nothing],
        "all": [nothing, online(duration_steps=0), {**EVAL, "duration_cycles": 0}],
    }[where]
    scheduler = scheduler_of(*phases)
    assert ran(scheduler) == ([] if where == "all" else ["update", "evaluate"])
    assert scheduler.current_phase() is None
    assert scheduler.progress() == 1.0


def test_a_phase_that_is_no_longer_passed_over_is_gone_back_to() -> None:
    nothing = {**OFFLINE, "name": "nothing", "duration_updates": 0}
    before = scheduler_of(nothing, OFFLINE, EVAL)
    assert ran(before, limit=1) == ["update"]
    after = scheduler_of({**nothing, "duration_updates": 2}, OFFLINE, EVAL)
    after.set_state(before.get_state())
    assert ran(after) == ["update", "update", "update", "evaluate"]
