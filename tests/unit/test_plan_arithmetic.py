"""The arithmetic of a plan, with made-up measurements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from reverie.commands.plan_report import as_json, time_words
from reverie.orchestration.checkpoint import CheckpointConfig
from reverie.orchestration.evaluator import EvaluationConfig
from reverie.orchestration.logger import LoggingConfig
from reverie.orchestration.phases import BatchSpec, HookSpec
from reverie.orchestration.replay_memory import RowBytes
from reverie.orchestration.run_counts import PhaseWork, RunCounts
from reverie.plan import Plan, planned
from reverie.plan_needs import Need
from reverie.probe import Machine, Measured, Probed
from reverie.probe_measures import Collecting, Files, Updating
from reverie.probe_replay import Replay
from reverie.types import Row

MB = 10**6
UPDATE = HookSpec("update", BatchSpec(8, 16))
STORED = 20
ROW = 120
"""Bytes of a row, of which the policy's latents take 20."""


def made_row() -> Row:
    no = torch.zeros(2, dtype=torch.bool)
    return Row(
        obs={},
        reward=torch.zeros(2),
        is_first=no,
        is_last=no,
        is_terminal=no,
        action=torch.zeros(2),
        stored={"deter": torch.zeros(2, STORED // 4)},
    )


def made_probe(**changes: Any) -> Probed:
    """2 environments, 1,000 steps of both in two phases, 300 updates, 5 evaluations, 10 checkpoints."""
    work = (
        PhaseWork(name="a", buffer="replay", hooks=((HookSpec("collect"), 400), (UPDATE, 100)), steps=800),
        PhaseWork(name="b", buffer="replay", hooks=((HookSpec("collect"), 600), (UPDATE, 200)), steps=1200),
    )
    collecting = Collecting(
        env_seconds=0.004,
        policy_seconds=0.002,
        append_seconds=0.001,
        start_seconds=1.0,
        episode_length=50.0,
        has_ended_episodes=True,
        row=made_row(),
    )
    measured = Measured(
        start_seconds=3.0,
        collecting=collecting,
        updating={(UPDATE, "replay"): Updating(seconds=0.1, draw_seconds=0.01, start_seconds=2.0, metrics={})},
        files=Files(checkpoint_seconds=0.5, checkpoint_bytes=200 * MB, line_seconds=0.01),
        main_bytes=500 * MB,
        worker_bytes=100 * MB,
        gpu_bytes=0,
        row_bytes=RowBytes(row=ROW - STORED, stored=STORED),
    )
    probed = Probed(
        experiment="made_up",
        task="nothing",
        device="cpu",
        num_envs=2,
        counts=RunCounts(phases=work, evaluations=5, checkpoints=10),
        replay={"replay": Replay(capacity=10**7, rows=2000, home="host")},
        evaluation=EvaluationConfig(episodes=10, envs=4),
        checkpoint=CheckpointConfig(keep=2),
        logging=LoggingConfig(every_steps=500, every_updates=1000),
        measured=measured,
        machine=Machine(ram_bytes=10**9, gpu_bytes=None, disk_bytes=10**10, runs_folder="/runs"),
    )
    measured_changes = {key: changes.pop(key) for key in list(changes) if hasattr(measured, key)}
    return replace(probed, measured=replace(measured, **measured_changes), **changes)


def cost_of(plan: Plan, kind: str) -> tuple[float, int]:
    (found,) = [(cost.each_seconds, cost.count) for cost in plan.costs if cost.kind == kind]
    return found


def need_of(plan: Plan, name: str) -> Need:
    (found,) = [need for need in plan.needs if need.name == name]
    return found


def test_time_is_what_was_measured_times_what_will_be_done() -> None:
    plan = planned(made_probe())
    assert cost_of(plan, "env") == (0.004, 1000)
    assert cost_of(plan, "policy") == (0.002, 1000)
    assert cost_of(plan, "update") == (0.1, 300), "the same update of two phases is one line"
    assert cost_of(plan, "log") == (0.01, 4)
    assert [(cost.what, cost.count) for cost in plan.costs if cost.kind == "replay"] == [
        ("row into replay", 1000),
        ("batch for update of 8 x 16", 300),
    ]
    assert plan.seconds == pytest.approx(sum(cost.each_seconds * cost.count for cost in plan.costs))


def test_evaluations_are_played_in_rounds() -> None:
    """10 episodes in 4 environments are 3 rounds of 50 steps; 4 simulators take twice as long as 2."""
    assert cost_of(planned(made_probe()), "evaluate") == (pytest.approx(3 * 50 * (0.008 + 0.002)), 5)


def test_an_episode_that_did_not_end_is_as_long_as_the_time_limit() -> None:
    collecting = made_probe().measured.collecting
    assert collecting is not None
    unfinished = replace(collecting, has_ended_episodes=False)
    plan = planned(made_probe(collecting=unfinished, episode_limit=200))
    assert cost_of(plan, "evaluate") == (pytest.approx(3 * 200 * (0.008 + 0.002)), 5)
    assert "time limit of 200 steps" in plan.remarks[-1]
    assert "take longer than estimated" in planned(made_probe(collecting=unfinished)).remarks[-1]
    assert "4.0 times as long" in planned(made_probe(episode_limit=200)).remarks[-1]


def test_a_first_call_is_not_passed_off_as_the_usual_one() -> None:
    (key, updating), *_ = made_probe().measured.updating.items()
    assert not any("first call" in remark for remark in planned(made_probe()).remarks)
    only = {key: replace(updating, is_first_call=True)}
    assert any("first call" in remark for remark in planned(made_probe(updating=only)).remarks)


def test_memory_and_disk_are_added_up() -> None:
    plan = planned(made_probe())
    assert need_of(plan, "RAM").parts == {
        "main process": 500 * MB,
        "simulators": 100 * MB,
        "simulators of evaluations": 200 * MB,
        "replay": 2000 * ROW,
    }
    assert need_of(plan, "disk").parts == {
        "replay": 2000 * (ROW - STORED),
        "checkpoints": 3 * (200 * MB + 2000 * STORED),
    }
    assert plan.fits
    assert [need.name for need in plan.needs] == ["RAM", "disk"]


def test_replay_that_does_not_fit_comes_first_with_the_capacity_that_would() -> None:
    rows = 2 * 10**6
    plan = planned(made_probe(replay={"replay": Replay(capacity=rows, rows=rows, home="host")}))
    assert not plan.fits
    capacity = (10**9 - 800 * MB) // ROW
    fewer = f"set buffer.replay.capacity={capacity} or less"
    assert plan.bottleneck == f"RAM does not fit; set buffer.device=disk, or {fewer}, or choose a smaller size=."
    smaller = planned(made_probe(replay={"replay": Replay(capacity=capacity, rows=capacity, home="host")}))
    assert smaller.fits
    one_more = Replay(capacity=capacity + 1, rows=capacity + 1, home="host")
    assert not planned(made_probe(replay={"replay": one_more})).fits


def test_another_remedy_is_named_where_replay_is_not_what_is_too_large() -> None:
    plan = planned(made_probe(main_bytes=2 * 10**9))
    assert plan.bottleneck.startswith("RAM does not fit; choose a smaller size=")


def test_the_capacity_that_disk_has_room_for() -> None:
    machine = Machine(ram_bytes=None, gpu_bytes=None, disk_bytes=600 * MB + 1000 * (ROW + 2 * STORED), runs_folder="/")
    plan = planned(made_probe(machine=machine))
    assert need_of(plan, "RAM").fits, "where the system does not say, nothing is in the way"
    assert plan.bottleneck.startswith("disk does not fit; set buffer.replay.capacity=1000 or less, or put the run else")


def test_a_gpu_gives_all_of_replay_at_once() -> None:
    machine = Machine(ram_bytes=10**9, gpu_bytes=10**9, disk_bytes=10**10, runs_folder="/runs")
    replay = {"replay": Replay(capacity=10**7, rows=2000, home="cuda")}
    plan = planned(made_probe(machine=machine, replay=replay, device="cuda", gpu_bytes=300 * MB))
    assert need_of(plan, "GPU memory").parts == {"model and update": 300 * MB, "replay": 10**7 * ROW}
    assert need_of(plan, "RAM").parts["replay"] == 0
    assert plan.bottleneck.startswith("GPU memory does not fit; set buffer.replay.capacity=5833333 or less")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ("the update of 8 x 16, ", "a GPU", "training.train_ratio")),
        ({"device": "cuda"}, ("the update of 8 x 16, ", "a smaller size= or")),
        ({"start_seconds": 1e4}, ("the start, ", "hardly longer")),
        ({"files": Files(checkpoint_seconds=99.0, checkpoint_bytes=1, line_seconds=0.0)}, ("the checkpoint, ",)),
        ({"evaluation": EvaluationConfig(episodes=10**5, envs=4)}, ("the evaluation, ", "evaluation.episodes")),
    ],
)
def test_otherwise_the_largest_share_of_time_is_named(changes: dict[str, Any], words: tuple[str, ...]) -> None:
    bottleneck = planned(made_probe(**changes)).bottleneck
    assert all(word in bottleneck for word in words)
    assert changes.get("device") != "cuda" or "a GPU" not in bottleneck


def test_slow_simulators_are_named() -> None:
    measured = made_probe().measured
    assert measured.collecting is not None
    plan = planned(made_probe(collecting=replace(measured.collecting, env_seconds=5.0, episode_length=1.0)))
    assert plan.bottleneck.startswith("the step of 2 environments, ")
    assert "environment.in_workers=true" in plan.bottleneck
    slow = replace(measured.collecting, env_seconds=5.0, episode_length=0.1)
    alone = planned(made_probe(num_envs=1, worker_bytes=0, collecting=slow))
    assert "more environment.num_envs" in alone.bottleneck


def test_a_run_without_an_environment_has_no_steps() -> None:
    work = (PhaseWork(name="learn", buffer="replay", hooks=((UPDATE, 300),), steps=0),)
    counts = RunCounts(phases=work, evaluations=0, checkpoints=3)
    plan = planned(made_probe(collecting=None, num_envs=0, counts=counts, worker_bytes=0, replay={}))
    assert {cost.kind for cost in plan.costs} == {"start", "replay", "update", "checkpoint"}
    assert "training.total_updates" in plan.bottleneck


def test_the_json_holds_every_number_of_the_plan() -> None:
    plan = planned(made_probe())
    found = as_json(plan)
    assert found["seconds"] == plan.seconds
    assert [phase["updates"] for phase in found["phases"]] == [100, 200]
    assert sum(cost["seconds"] for cost in found["costs"]) == pytest.approx(plan.seconds)
    assert {need["name"]: need["needed_bytes"] for need in found["needs"]} == {
        need.name: need.needed_bytes for need in plan.needs
    }


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.0123, "12.3 ms"), (4.24, "4.2 s"), (600.0, "10 min"), (36000.0, "10.0 h")]
)
def test_times_in_words(seconds: float, words: str) -> None:
    assert time_words(seconds) == words


def test_replay_on_disk_takes_no_memory_but_room_for_all_latents() -> None:
    host, disk = (
        planned(made_probe(replay={"replay": Replay(capacity=10_000, rows=2000, home=home)}))
        for home in ("host", "disk")
    )
    assert need_of(host, "RAM").needed_bytes - need_of(disk, "RAM").needed_bytes == 2000 * ROW
    assert need_of(disk, "disk").needed_bytes - need_of(host, "disk").needed_bytes == 10_000 * STORED
