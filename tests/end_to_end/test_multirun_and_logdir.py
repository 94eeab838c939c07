"""Where runs go: new folders, folders that go on, folders that refuse, longer runs and forks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from killer import Killer
from same_run import SMALL_RUN, checkpoint_names, differences, metric_lines, status

RANDOM = (
    *("experiment=random_cartpole", "training.total_timesteps=60", "evaluation.episodes=2", "evaluation.envs=2"),
    *("logging.every_steps=20", "checkpoint.every_steps=20", "logging.has_tensorboard=false"),
)


@pytest.fixture
def random_run(killer: Killer, tmp_path: Path) -> Path:
    run = tmp_path / "run"
    ended = killer.run("train", *RANDOM, f"logdir={run}")
    assert ended.code == 0, ended.output
    return run


@pytest.fixture
def runs(killer: Killer) -> Path:
    """An empty `runs/` in the working directory."""
    folder = killer.home / "runs"
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def test_every_plain_train_is_a_new_run(killer: Killer, runs: Path) -> None:
    for count in (1, 2):
        ended = killer.run("train", *RANDOM)
        assert ended.code == 0, ended.output
        assert len(list(runs.iterdir())) == count
    one, other = sorted(runs.iterdir())
    assert one.name.startswith("random_cartpole-")
    assert differences(one, other) == []


def test_a_multirun_of_two_seeds_makes_two_runs(killer: Killer, runs: Path) -> None:
    ended = killer.run("train", "--multirun", *RANDOM, "experiment.seed=1,2")
    assert ended.code == 0, ended.output
    folders = sorted(runs.iterdir())
    seeds = {json.loads(line.partition("seed: ")[2]) for run in folders for line in _seed_lines(run)}
    assert seeds == {1, 2}
    assert len(folders) == 2
    assert [status(run) for run in folders] == ["finished", "finished"]
    assert differences(*folders) != []
    assert {path.name for path in killer.home.iterdir()} <= {"runs", "output.txt", "evil.py"}


def _seed_lines(run: Path) -> list[str]:
    return [line for line in (run / "config.yaml").read_text().splitlines() if line.strip().startswith("seed: ")]


def test_the_logdir_of_a_run_goes_on_with_it(killer: Killer, reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    latest = run / "checkpoints" / "latest"
    command = ("train", *SMALL_RUN, f"logdir={run}")
    killer.signalled(*command, until=lambda: latest.is_file() and latest.read_text() >= "0000000096", delay_seconds=0)
    ended = killer.run(*command)
    assert ended.code == 0, ended.output
    assert f"Resuming {run} at step" in ended.output
    assert differences(run, reference) == []


def test_a_logdir_with_another_config_is_refused_with_the_keys(killer: Killer, random_run: Path) -> None:
    before = {path: path.read_bytes() for path in random_run.rglob("*") if path.is_file()}
    other = ("experiment.seed=9", "environment.num_envs=3", "logging.every_steps=10")
    ended = killer.run("train", *RANDOM, f"logdir={random_run}", *other)
    assert ended.code == 2
    sentence = ended.output.strip()
    assert "\n" not in sentence
    assert "experiment.seed: 0 -> 9" in sentence
    assert "environment.num_envs: 1 -> 3" in sentence
    assert "every_steps" not in sentence
    after = {path: path.read_bytes() for path in random_run.rglob("*") if path.is_file()}
    lock = random_run / "lock"  # names the process that had it last
    assert {**after, lock: b""} == {**before, lock: b""}


@pytest.mark.parametrize("command", ["resume", "train"])
def test_more_timesteps_make_a_finished_run_longer(command: str, killer: Killer, random_run: Path) -> None:
    longer = "training.total_timesteps=110"
    arguments = [str(random_run)] if command == "resume" else [*RANDOM, f"logdir={random_run}"]
    ended = killer.run(command, *arguments, longer)
    assert ended.code == 0, ended.output
    assert checkpoint_names(random_run)[-1].startswith("0000000110")
    assert "Phase 'collect' is longer than it was" in ended.output
    assert [line["agent_steps"] for line in metric_lines(random_run) if "eval/return_mean" in line] == [60, 110]


@pytest.mark.parametrize("command", ["resume", "train"])
def test_fewer_timesteps_than_were_made_are_refused(command: str, killer: Killer, random_run: Path) -> None:
    before = (random_run / "config.yaml").read_bytes(), (random_run / "run.json").read_bytes()
    arguments = [str(random_run)] if command == "resume" else [*RANDOM, f"logdir={random_run}"]
    ended = killer.run(command, *arguments, "training.total_timesteps=59")
    assert ended.code == 2
    assert f"training.total_timesteps is 59, but {random_run} has already made 60 steps: " in ended.output
    assert ended.output.count("\n") == 1
    assert before == ((random_run / "config.yaml").read_bytes(), (random_run / "run.json").read_bytes())


def test_an_interrupted_run_may_become_shorter(killer: Killer, random_run: Path) -> None:
    marker = random_run / "checkpoints" / "latest"
    killer.signalled(
        *("resume", str(random_run), "training.total_timesteps=900000"),
        until=lambda: marker.read_text() >= "0000000120",
        delay_seconds=0,
        number=15,
    )
    done = int(checkpoint_names(random_run)[-1].partition("-")[0])
    ended = killer.run("resume", str(random_run), f"training.total_timesteps={done + 10}")
    assert ended.code == 0, ended.output
    assert metric_lines(random_run)[-1]["agent_steps"] == done + 10


def test_an_extended_run_that_was_interrupted_keeps_its_new_length(killer: Killer, random_run: Path) -> None:
    marker = random_run / "checkpoints" / "latest"
    ended = killer.signalled(
        *("resume", str(random_run), "training.total_timesteps=900"),
        until=lambda: marker.read_text() >= "0000000120",
        delay_seconds=0,
        number=15,
    )
    assert ended.code == 143, ended.output
    ended = killer.run("resume", str(random_run))
    assert ended.code == 0, ended.output
    assert metric_lines(random_run)[-1]["agent_steps"] == 900


def test_a_resume_path_forks_a_run(killer: Killer, random_run: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in random_run.rglob("*") if path.is_file()}
    straight, fork = tmp_path / "straight", tmp_path / "fork"
    longer = "training.total_timesteps=110"
    assert killer.run("train", *RANDOM, longer, f"logdir={straight}").code == 0
    source = random_run / "checkpoints" / checkpoint_names(random_run)[0]
    ended = killer.run("train", *RANDOM, longer, f"logdir={fork}", f"training.resume_path={source}")
    assert ended.code == 0, ended.output
    assert "Beginning with the state of" in ended.output
    assert {path: path.read_bytes() for path in before} == before
    assert differences(fork, straight) == []


def test_a_resume_path_without_a_run_is_refused(killer: Killer, tmp_path: Path) -> None:
    logdir = tmp_path / "fork"
    ended = killer.run("train", *RANDOM, f"logdir={logdir}", f"training.resume_path={tmp_path / 'nowhere'}")
    assert ended.code == 2
    assert "nowhere` is not a run folder" in ended.output
