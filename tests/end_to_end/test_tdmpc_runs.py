"""TD-MPC2 on the frame: killed and resumed it is the same run, and every command works with it."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
from killer import Forget, Kill, Killer
from same_run import differences, replay_files
from test_black_box import black_box, check_stopped, sick

from reverie.cli import main
from reverie.orchestration.black_box import read_black_box
from reverie.types import Batch, Phase
from reverie.workflows.base import UpdateResult
from reverie.workflows.tdmpc import Tdmpc

__all__ = ["sick"]

SMALL_RUN = (
    *("experiment=tdmpc_pendulum", "size=debug", "task=builtin_continuous", "workflow.episode_length=20"),
    *("environment.num_envs=2", "training.total_timesteps=64", "training.prefill_steps=48"),
    *("training.batch_size=4", "training.train_ratio=6", "buffer.replay.capacity=80", "buffer.evaluation.capacity=96"),
    *("controller.planner.iterations=2", "controller.planner.samples=12", "controller.planner.proposals=4"),
    *("evaluation={every_steps: 60, episodes: 3, envs: 2}", "checkpoint.every_steps=16", "logging.every_steps=20"),
    *("logging.has_tensorboard=false", "evaluation.open_loop.pictures_every=null"),
)
"""Seed steps, as many updates at once, steps and updates side by side, and a ring of replay that wraps."""

_UPDATE = "reverie.workflows.tdmpc:Tdmpc.update"
KILLS = {
    "seed": Kill("reverie.workflows.base:WorldModelWorkflow.collect_step", "after", 10),
    "pretraining": Kill(_UPDATE, "before", 20),
    "policy step": Kill("reverie.workflows.tdmpc_optimizers:TdmpcOptimizers.step_policy", "before", 66),
    "planning": Kill("reverie.components.controllers.mppi:Mppi.__call__", "before", 29),
}


@pytest.fixture(scope="module")
def finished(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small run, uninterrupted. Nobody writes into it: copy it."""
    run = tmp_path_factory.mktemp("finished") / "run"
    ended = killer.run("train", *SMALL_RUN, f"logdir={run}")
    assert ended.code == 0, ended.output
    return run


def test_kills_change_nothing(killer: Killer, finished: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", *SMALL_RUN, f"logdir={run}"]
    for name in ("seed", "pretraining", "planning"):
        ended = killer.run(*command, kill=KILLS[name])
        assert ended.code == -signal.SIGKILL, f"{name} was not reached: {ended.output}"
        command = ["resume", str(run)]
    ended = killer.run(*command)
    assert ended.code == 0, ended.output
    assert differences(run, finished) == []
    assert replay_files(run) == replay_files(finished)


@pytest.fixture(scope="module")
def killed(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed between the steps of model and policy, to be copied."""
    run = tmp_path_factory.mktemp("killed") / "run"
    ended = killer.run("train", *SMALL_RUN, f"logdir={run}", kill=KILLS["policy step"])
    assert ended.code == -signal.SIGKILL, ended.output
    return run


FORGOTTEN = {
    "plans of the step before": Forget("reverie.workflows.base:WorldModelWorkflow.set_state", "workflow_custom"),
    "moments": Forget("reverie.runtime.adam:Adam.set_state", "square"),
    "stream of updates": Forget("reverie.runtime.rng:RandomStreams.set_state", "update"),
    "nothing": None,
}


@pytest.mark.parametrize("part", FORGOTTEN)
def test_the_comparison_notices_what_was_not_restored(
    part: str, killed: Path, killer: Killer, finished: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    ended = killer.run("resume", str(run), forget=FORGOTTEN[part])
    assert ended.code == 0, ended.output
    assert (differences(run, finished) == []) == (part == "nothing")


def test_windows_never_cross_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a buffer that wraps, with episodes of twenty steps from two environments."""
    met: list[Batch] = []
    learn = Tdmpc.update

    def watched(self: Tdmpc, batch: Batch, *, phase: Phase) -> UpdateResult:
        met.append(batch)
        return learn(self, batch, phase=phase)

    monkeypatch.setattr(Tdmpc, "update", watched)
    assert main(["train", *SMALL_RUN, f"logdir={tmp_path / 'run'}"]) == 0
    assert len(met) == 72
    assert not any(batch.is_first[:, 1:].any() for batch in met)
    assert any(batch.is_first[:, 0].any() for batch in met)
    assert any(batch.is_last[:, -1].any() for batch in met)
    assert not any(batch.is_last[:, :-1].any() for batch in met)


def test_as_many_updates_as_seed_steps_then_as_the_ratio_says(finished: Path) -> None:
    lines = [json.loads(line) for line in (finished / "metrics.jsonl").read_text().splitlines()]
    updates = max(line.get("updates", 0) for line in lines)
    assert updates == 48 + 64 * 6 // (4 * 4)


def test_a_trained_agent_is_evaluated(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(finished), "--episodes", "3", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["episodes"] == 3
    assert told["length_mean"] == 20


def test_a_bad_observation_stops_a_run_and_is_found_again(sick: Killer, killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    task = "gym:sick_pkg:SickNumbers-v0"
    check_stopped(sick.run("train", *SMALL_RUN, f"task={task}", "environment=gym", f"logdir={run}"), run)
    batch = read_black_box(black_box(run))["batch"]
    assert not batch["is_first"][:, 1:].any(), "a window crosses episodes"
    ended = killer.run("replay-update", str(black_box(run)), "--json")
    assert ended.code == 0, ended.output
    told = json.loads(ended.output)
    assert (told["finding"]["kind"], told["finding"]["name"], told["is_skipped"]) == ("batch", "obs/vector", True)


def test_a_plan_and_a_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    small = [word for word in SMALL_RUN if not word.startswith(("experiment=", "size=", "task="))]
    assert main(["plan", "tdmpc_pendulum", *SMALL_RUN[1:], "--seconds", "1", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [phase["name"] for phase in plan["phases"]] == ["seed", "pretrain", "learn", "final_evaluation"]
    assert sum(phase["updates"] for phase in plan["phases"]) == 48 + 24
    words = ["bench", "--size", "debug", "--observations", "vector", "--parts", "--json", "experiment=tdmpc_pendulum"]
    assert main([*words, "runtime=cpu", *small]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert list(result["ms_per_part"]) == ["replay", "targets", "model", "policy", "probe", "optimizers", "other"]
    assert result["ms_per_update"] > 0
