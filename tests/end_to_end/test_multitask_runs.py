"""Several tasks: recorded, learned from without an environment, killed and resumed, and played; and learned online."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from killer import Kill, Killer
from test_offline import differences

from reverie.cli import main
from reverie.datasets.dataset import Dataset

OPTIONS = "environment.simulator.options={action_repeat: 1}"
OFFLINE = (
    *("experiment=tdmpc_multitask_offline", "size=debug", "runtime=cpu", "experiment.device=cpu"),
    *("training.total_updates=10", "training.batch_size=4", "checkpoint.every_updates=4", "logging.every_updates=3"),
    *("workflow.episode_length=[20,200]", "training.sampler=prioritized", "buffer.replay.importance_exponent=0.4"),
    "logging.has_tensorboard=false",
)
ONLINE = (
    *("experiment=tdmpc_multitask", "size=debug", "runtime=cpu", "experiment.device=cpu", "task=multitask_small"),
    *("environment.in_workers=false", "environment.num_envs=2", "environment.simulator.options.action_repeat=1"),
    *("training.total_timesteps=80", "training.prefill_steps=60", "training.batch_size=4", "training.train_ratio=4"),
    *("evaluation={every_steps: null, episodes: 8, envs: 8}", "buffer.evaluation.capacity=1608"),
    *("controller.planner={iterations: 1, samples: 8, proposals: 2, elites: 4}", "logging.has_tensorboard=false"),
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "data"
    assert main(["record", "multitask_small", str(path), "--episodes", "4", OPTIONS]) == 0
    return path


@pytest.mark.long
def test_an_offline_run_over_several_tasks_is_the_same_run_when_killed(
    data: Path, killer: Killer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = {int(number) for _, arrays in Dataset(data).arrays() for number in arrays["obs/task"]}
    assert numbers == {0, 1}
    whole, run = tmp_path / "whole", tmp_path / "run"
    command = ["train", *OFFLINE, f"buffer.replay.path={data}"]
    assert main([*command, f"logdir={whole}"]) == 0
    ended = killer.run(*command, f"logdir={run}", kill=Kill("reverie.workflows.tdmpc:Tdmpc.update", "after", 6))
    assert ended.code == -signal.SIGKILL, ended.output
    assert main(["resume", str(run)]) == 0
    assert differences(run, whole) == []
    capsys.readouterr()
    assert main(["eval", str(run), "--task", "multitask_small", "--episodes", "4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["episodes"] == 4


def test_a_run_over_several_tasks_scores_each_of_them(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert main(["train", *ONLINE, f"logdir={run}"]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [line for line in lines if "eval/return_mean" in line][-1]
    assert {"eval/return/builtin_continuous", "eval/return/gym_Pendulum-v1"} <= last.keys()


def test_a_dataset_of_one_task_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    assert main(["record", "builtin_continuous", str(data), "--episodes", "2"]) == 0
    capsys.readouterr()
    assert main(["train", *OFFLINE, f"buffer.replay.path={data}", f"logdir={tmp_path / 'run'}"]) == 2
    assert "needs the observations `task`" in capsys.readouterr().err
