"""`reverie plan` as a person types it: a real probe that leaves nothing behind, and counts that a real run confirms."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from killer import Killer
from same_run import SMALL_RUN, metric_lines

from reverie import offline_build
from reverie.cli import main
from reverie.runtime.machine_memory import Memory
from reverie.workflows.dreamer import Dreamer

TINY = ("size=debug", "workflow.horizon=2", "training.batch_size=2", "training.batch_length=4")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, which is also where temporary files go."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def plan_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> dict[str, Any]:
    assert main(["plan", *words, "--seconds", "1", "--json"]) == code
    return json.loads(capsys.readouterr().out)


def kinds(plan: dict[str, Any]) -> set[str]:
    return {cost["kind"] for cost in plan["costs"]}


def test_a_plan_says_everything_and_leaves_nothing_behind(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["plan", "dreamer_cartpole", "size=debug", "runtime=debug", "--seconds", "2"]) == 0
    said, aside = capsys.readouterr()
    for words in ("of 8 environments in phase 'learn'", "one update ('update' of phase 'learn')", "a checkpoint"):
        assert words in aside, "nobody waits a minute for a silent program"
    for words in ("dreamer_cartpole on gym_CartPole-v1, cpu: about", "RAM", "disk", "fits", "First bottleneck: the "):
        assert words in said
    assert "update of 8 x 16" in said
    assert list(folder.iterdir()) == []


def test_the_numbers_of_a_plan_are_measured(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    plan = plan_of(capsys, "dreamer_cartpole", *TINY)
    assert plan["fits"] is True
    assert plan["phases"][0] == {"name": "learn", "steps": 52_000, "updates": 104_000, "evaluations": 0}
    assert kinds(plan) == {"start", "env", "policy", "replay", "update", "evaluate", "checkpoint", "log"}
    assert all(cost["each_seconds"] > 0 for cost in plan["costs"])
    needed = {need["name"]: need["parts"] for need in plan["needs"]}
    assert needed["RAM"]["main process"] > 10**8
    assert needed["RAM"]["replay"] == (52_000 + 10_000) * 56
    assert needed["disk"]["replay"] == (52_000 + 10_000) * 32
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("home", "name"), [("host", "RAM"), ("auto", "disk")])
def test_replay_that_does_not_fit_is_told_and_not_refused(
    home: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = ("training.total_timesteps=1e12", "buffer.replay.capacity=1000000000000", f"buffer.device={home}")
    plan = plan_of(capsys, "dreamer_cartpole", *TINY, *huge, code=1)
    assert plan["fits"] is False
    assert plan["bottleneck"].startswith(f"{name} does not fit; ")
    assert "set buffer.replay.capacity=" in plan["bottleneck"]


def test_replay_on_disk_is_probed_there(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, "dreamer_cartpole", *TINY, "buffer=disk_buffer", code=0)
    assert plan["fits"] is True


def test_simulators_in_workers_are_listed_apart(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, "experiment=dreamer_cartpole", *TINY, "environment.in_workers=true")
    assert next(need for need in plan["needs"] if need["name"] == "RAM")["parts"]["simulators"] > 10**6


def test_a_run_that_learns_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    plan = plan_of(capsys, "+experiment=random_cartpole", "buffer.replay.capacity=1e3")
    assert "update" not in kinds(plan)
    assert plan["phases"][0]["steps"] == 2000
    assert plan["needs"][-1]["parts"]["replay"] == (1_000 + 10_000) * 32, "no more rows than the buffer holds"


def test_a_run_without_an_environment(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    assert main(["record", "builtin_discrete", "data", "--episodes", "5"]) == 0
    capsys.readouterr()
    plan = plan_of(capsys, "dreamer_offline", "buffer.replay.path=data", *TINY, "training.total_updates=50")
    assert kinds(plan) == {"start", "replay", "update", "checkpoint"}
    assert [cost["count"] for cost in plan["costs"] if cost["kind"] == "update"] == [50]
    assert [path.name for path in folder.iterdir()] == ["data"]


def test_a_dataset_that_does_not_fit_is_told_with_the_same_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["record", "builtin_discrete", "data", "--episodes", "5"]) == 0
    tight = Memory(total_bytes=10**9, available_bytes=10)
    monkeypatch.setattr(offline_build, "machine_memory", lambda: tight)
    assert main(["plan", "dreamer_offline", "buffer.replay.path=data", *TINY]) == 1
    assert "reverie: does not fit: the dataset" in capsys.readouterr().err
    assert main(["train", "experiment=dreamer_offline", "buffer.replay.path=data", *TINY]) == 2


def test_an_update_that_a_device_has_no_memory_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Dreamer, "update", fail)
    assert main(["plan", "dreamer_cartpole", "size=debug", "--seconds", "1"]) == 1
    said = capsys.readouterr().err
    assert "does not fit: one update ('update' of phase 'learn') with a batch of 8 x 16 needs more memory" in said
    assert list(folder.iterdir()) == []


def test_experiments_of_ones_own(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (folder / "mine" / "experiment").mkdir(parents=True)
    (folder / "mine" / "experiment" / "short.yaml").write_text(
        "# @package _global_\ndefaults: [random_cartpole]\nexperiment: {name: short}\ntraining: {total_timesteps: 40}\n"
    )
    plan = plan_of(capsys, "short", "--config-dir", "mine")
    assert (plan["experiment"], plan["phases"][0]["steps"]) == ("short", 40)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ((), "EXPERIMENT is needed"),
        (("task=gym_CartPole-v1",), "EXPERIMENT is needed"),
        (("dreamer_cartpole", "random_cartpole"), "one EXPERIMENT is needed"),
        (("dreamer_cartpol",), "did you mean 'dreamer_cartpole'?"),
        (("dreamer_cartpole", "training.batch_sise=3"), "did you mean `training.batch_size`?"),
        (("dreamer_cartpole", "training.batch_size=0"), "at least 1"),
        (("dreamer_cartpole", "buffer.replay.capacity=64"), "will never hold"),
        (("dreamer_cartpole", "buffer.replay.capacity=true"), "must be an integer"),
        (("dreamer_cartpole", "buffer.replay.capacity=64.5"), "must be an integer"),
        (("dreamer_cartpole", "environment.num_envs=x"), "must be an integer"),
        (("dreamer_cartpole", "logdir=3"), "must be a path"),
        (("dreamer_cartpole", "--seconds", "0"), "must be a positive integer"),
        (("dreamer_cartpole", "--multirun"), "unrecognized arguments"),
        (("dreamer_offline",), "names no dataset"),
    ],
)
def test_a_mistake_is_one_sentence(
    words: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert main(["plan", *words]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith(("Probing", "Measuring"))]
    assert len(said) == 1
    assert complaint in said[0]
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_probe_leaves_nothing_behind(number: int, code: int, folder: Path, repo_root: Path) -> None:
    command = [sys.executable, "-m", "reverie", "plan", "dreamer_cartpole", *TINY, "environment.in_workers=true"]
    environment = {**os.environ, "PYTHONPATH": str(repo_root / "src"), "TMPDIR": str(folder)}
    process = subprocess.Popen(
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background job ignores it
        args=command,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not list(folder.glob(".reverie-plan-*")):
        assert process.poll() is None, "it ended before it began"
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == code
    assert list(folder.iterdir()) == []


def test_the_counts_are_those_of_a_real_run(killer: Killer, reference: Path) -> None:
    """Every phase, evaluation, and update of the small run: the last line says how many there were in all."""
    ended = killer.run("plan", *SMALL_RUN, "--seconds", "1", "--json")
    assert ended.code == 0, ended.output
    plan = json.loads(ended.output[ended.output.index("{") :])
    last = metric_lines(reference)[-1]
    assert sum(phase["steps"] for phase in plan["phases"]) == last["agent_steps"]
    assert sum(phase["updates"] for phase in plan["phases"]) == last["updates"]
    played = [line for line in metric_lines(reference) if "eval/return_mean" in line]
    assert [cost["count"] for cost in plan["costs"] if cost["kind"] == "evaluate"] == [len(played)]
    assert len(played) > 1
