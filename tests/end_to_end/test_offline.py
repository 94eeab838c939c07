"""From a task to a dataset to a trained agent, without an environment; and an offline run, killed, is the same run."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from killer import Forget, Kill, Killer
from made_episodes import old_dreamer, write_dataset
from same_run import lasting, metric_lines, status, unlike

from reverie import cli
from reverie.configuration import read_config
from reverie.datasets.dataset import Dataset
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.types import State

_UPDATE = "reverie.workflows.dreamer:Dreamer.update"
_SAVER = "reverie.orchestration.checkpoint:CheckpointManager"
OFFLINE = (
    "experiment=dreamer_offline",
    "size=debug",
    "workflow.horizon=2",
    "training.batch_size=3",
    "training.batch_length=6",
    "training.total_updates=14",
    "checkpoint.every_updates=4",
    "logging.every_updates=3",
    "logging.has_tensorboard=false",
)

FORGOTTEN = {
    "latents that were written back": Forget("reverie.buffers.offline:OfflineBuffer.set_state", "stored"),
    "the sampler's stream": Forget("reverie.runtime.rng:RandomStreams.set_state", "replay/replay"),
}


def last_state(run: Path) -> State:
    loaded = CheckpointManager(run, config=CheckpointConfig(), say=pytest.fail).load()
    assert loaded is not None
    return lasting(loaded.state)


def differences(one: Path, other: Path) -> list[str]:
    return unlike(metric_lines(one), metric_lines(other), "line") + unlike(last_state(one), last_state(other), "")


@pytest.fixture(scope="module")
def data(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "data"
    ended = killer.run("record", "builtin_discrete", str(path), "--episodes", "5", "environment.num_envs=2")
    assert ended.code == 0, ended.output
    return path


@pytest.fixture(scope="module")
def trained(killer: Killer, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("offline") / "run"
    ended = killer.run("train", *OFFLINE, f"buffer.replay.path={data}", f"logdir={run}")
    assert ended.code == 0, ended.output
    return run


@pytest.fixture(scope="module")
def killed(killer: Killer, data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its second checkpoint, to be copied."""
    run = tmp_path_factory.mktemp("killed") / "run"
    command = ["train", *OFFLINE, f"buffer.replay.path={data}", f"logdir={run}"]
    assert killer.run(*command, kill=Kill(_UPDATE, "after", 10)).code == -signal.SIGKILL
    return run


def test_recorded_episodes_are_described(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["data", "info", str(data), "--verify"]) == 0
    shown = capsys.readouterr().out
    assert "builtin_discrete" in shown
    assert "5 (0 ended by themselves, 5 cut off)" in shown
    assert cli.main(["data", "info", str(data), "--json"]) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["rows"] == sum(episode["rows"] for episode in described["episodes"])
    assert described["digest"] == Dataset(data).index.digest


def test_the_same_seed_gives_the_same_dataset_in_workers_too(data: Path, killer: Killer, tmp_path: Path) -> None:
    command = ["record", "builtin_discrete", "--episodes", "5", "environment.num_envs=2"]
    for name, more in (("workers", ["environment.in_workers=true"]), ("other", ["--seed", "1"])):
        ended = killer.run(*command, str(tmp_path / name), *more)
        assert ended.code == 0, ended.output
    digest = Dataset(data).index.digest
    assert Dataset(tmp_path / "workers").index.digest == digest
    assert Dataset(tmp_path / "other").index.digest != digest


def test_the_run_folder_names_the_dataset(trained: Path, data: Path) -> None:
    node = read_config(trained)["buffer"]["replay"]
    assert (node["path"], node["digest"]) == (str(data), Dataset(data).index.digest)
    assert status(trained) == "finished"
    lines = metric_lines(trained)
    assert [(line["agent_steps"], line["updates"]) for line in lines] == [(0, 3), (0, 6), (0, 9), (0, 12), (0, 14)]
    assert np.isfinite([line["train/loss/reconstruction"] for line in lines]).all()
    assert not (trained / "replay").exists(), "rows are in the dataset, not in the run"
    stored = last_state(trained)["buffers"]["replay"]["stored"]
    assert any(value.any() for value in stored.values()), "no latent was written back"


def test_a_killed_run_is_the_same_run(trained: Path, data: Path, killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", *OFFLINE, f"buffer.replay.path={data}", f"logdir={run}"]
    for kill in (Kill(_UPDATE, "after", 2), Kill(f"{_SAVER}._publish", "before", 2), Kill(_UPDATE, "before", 7)):
        assert killer.run(*command, kill=kill).code == -signal.SIGKILL
        command = ["resume", str(run)]
    ended = killer.run(*command)
    assert ended.code == 0, ended.output
    assert differences(run, trained) == []


@pytest.mark.parametrize("part", FORGOTTEN)
def test_the_comparison_notices_what_was_not_restored(
    part: str, killed: Path, trained: Path, killer: Killer, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    ended = killer.run("resume", str(run), forget=FORGOTTEN[part])
    assert ended.code == 0, ended.output
    assert differences(run, trained) != []


def test_a_dataset_may_move_but_not_change(
    killed: Path, trained: Path, data: Path, killer: Killer, tmp_path: Path
) -> None:
    run, moved = tmp_path / "run", tmp_path / "moved"
    shutil.copytree(killed, run)
    write_dataset(moved)
    ended = killer.run("resume", str(run), f"buffer.replay.path={moved}")
    assert ended.code == 2
    assert "moved has changed since this run was started" in ended.output
    shutil.rmtree(moved)
    ended = killer.run("resume", str(run), f"buffer.replay.path={moved}")
    assert (ended.code, "is no dataset of Reverie" in ended.output) == (2, True)
    shutil.copytree(data, moved)
    ended = killer.run("resume", str(run), f"buffer.replay.path={moved}")
    assert ended.code == 0, ended.output
    assert differences(run, trained) == []


def test_a_run_goes_on_with_more_updates(trained: Path, killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    assert killer.run("resume", str(run), "training.total_updates=16").code == 0
    assert metric_lines(run)[-1]["updates"] == 16


def test_a_trained_agent_is_evaluated_and_recorded_where_the_user_says(
    trained: Path, killer: Killer, tmp_path: Path
) -> None:
    ended = killer.run("eval", str(trained))
    assert (ended.code, "no environment to play in" in ended.output) == (2, True)
    ended = killer.run("eval", str(trained), "--task", "builtin_discrete", "--episodes", "1", "--json")
    assert ended.code == 0, ended.output
    ended = killer.run("eval", str(trained), "--task", "builtin_continuous", "--episodes", "1")
    assert (ended.code, "differs from what it learned" in ended.output) == (2, True)
    dest = tmp_path / "played"
    ended = killer.run("record", "builtin_discrete", str(dest), "--run", str(trained), "--steps", "25")
    assert ended.code == 0, ended.output
    index = Dataset(dest).index
    assert [episode.rows for episode in index.episodes] == [21, 4]
    assert index.origin == "the agent of run, seed 0"
    ended = killer.run("record", "builtin_continuous", str(tmp_path / "other"), "--run", str(trained))
    assert (ended.code, "cannot play builtin_continuous" in ended.output) == (2, True)
    assert not (tmp_path / "other").exists()


def test_evaluations_come_by_updates(data: Path, killer: Killer, tmp_path: Path) -> None:
    more = ["task=builtin_discrete", "evaluation.every_updates=7", "evaluation.episodes=2", "training.total_updates=7"]
    more += ["evaluation.open_loop.pictures_every=null"]
    ended = killer.run("train", *OFFLINE, *more, f"buffer.replay.path={data}", f"logdir={tmp_path / 'run'}")
    assert ended.code == 0, ended.output
    assert "Evaluation after 7 updates" in ended.output
    assert [line["updates"] for line in metric_lines(tmp_path / "run") if "eval/return_mean" in line] == [7]


PHASES = """[{name: study, type: offline, buffer: data, duration_updates: 2,
    workflow_hooks: [{update: {batch: {size: 2, length: 4}}}]},
  {name: learn, type: online, buffer: replay, duration_steps: 24, train_ratio: 2,
    workflow_hooks: [collect, {update: {batch: {size: 2, length: 4}}}]}]"""


def test_a_dataset_and_an_environment_in_one_run(data: Path, killer: Killer, tmp_path: Path) -> None:
    command = ["train", "experiment=dreamer_cartpole", "size=debug", "environment.num_envs=1", "workflow.horizon=2"]
    command += ["evaluation.every_steps=null", "logging.has_tensorboard=false"]
    command += [f"+buffer.data={{_target_: reverie.buffers.offline.OfflineBuffer, path: {data}}}"]
    command += [f"training.phases={' '.join(PHASES.split())}", f"logdir={tmp_path / 'run'}"]
    ended = killer.run(*command)
    assert (ended.code, "`buffer.data` does not fit gym_CartPole-v1" in ended.output) == (2, True)
    assert not (tmp_path / "run").exists()
    ended = killer.run(*command, "task=builtin_discrete")
    assert ended.code == 0, ended.output
    assert metric_lines(tmp_path / "run")[-1]["agent_steps"] == 24


COLLECTS = "training.phases=[{name: play, type: online, duration_steps: 5, workflow_hooks: [collect]}]"


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ([], "`buffer.replay.path` names no dataset"),
        (["buffer.replay.path=nowhere"], "is no dataset of Reverie"),
        (["buffer.replay.path={data}", "evaluation.every_updates=5"], "there is no environment: name a task"),
        (["buffer.replay.path={data}", COLLECTS], "phase 'play' has the hook collect, but there is no environment"),
        (["buffer.replay.path={data}", "training.batch_length=500"], "will never hold"),
        (["buffer=world_model_sequence"], "no task and no dataset"),
        (
            ["buffer.replay.path={data}", "training.crosses_episodes=false", "training.batch_length=40"],
            "rows inside one episode",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    more: list[str], sentence: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [item.replace("{data}", str(data)) for item in more]
    assert cli.main(["train", *OFFLINE, *given, f"logdir={tmp_path / 'run'}"]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_import_says_what_is_wrong_and_keeps_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "eps"
    folder.mkdir()
    bad: dict[str, Any] = old_dreamer(seed=1)
    bad["reward"][2] = np.nan
    np.savez(folder / "bad.npz", **bad)
    assert cli.main(["data", "import", str(folder), str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert "  bad.npz, reward, step 2: not a finite number\n" in error
    assert "holds no good episode" in error
    np.savez(folder / "good.npz", **old_dreamer())
    assert cli.main(["data", "import", str(folder), str(tmp_path / "some")]) == 0
    assert "bad.npz, reward, step 2" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["eps", "some"]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["record", "gym_CartPol-v1", "x"], "did you mean gym_CartPole-v1"),
        (["record", "builtin_discrete"], "TASK and DEST are needed"),
        (["record", "builtin_discrete", "x", "--episodes", "2", "--steps", "3"], "not allowed with argument"),
        (["record", "builtin_discrete", "x", "environment.num_env=2"], "environment.num_env"),
        (["record", "builtin_discrete", "x", "--run", "nowhere"], "is not a run folder"),
        (["record", "builtin_discrete", "here"], "exists already"),
        (["data", "info", "nowhere"], "is no dataset of Reverie"),
        (["data", "import", "nowhere", "x"], "there is no `nowhere`"),
        (["data", "export", "nowhere", "x", "--format", "npz"], "is no dataset of Reverie"),
        (["data", "export", "nowhere", "x", "--format", "zarr"], "invalid choice"),
        (["data", "import", "here", "x", "--action-range", "2", "1"], "--action-range must rise"),
    ],
)
def test_wrong_commands_are_one_sentence(
    command: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(command) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
