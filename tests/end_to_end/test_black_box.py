"""Runs that go wrong, in real processes: skipped updates, the stop, the black box, and the update executed again."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from killer import Ended, Forget, Kill, Killer
from same_run import SMALL_RUN, checkpoint_names, differences, metric_lines, status

from reverie.orchestration.black_box import read_black_box
from reverie.orchestration.state_folder import write_state_folder

PACKAGE = """
import gymnasium
import numpy as np


class Sick(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-10, 10, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, share, kind, numbers=False):
        self._share, self._kind = share, kind
        if numbers:
            self.action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._step, self._is_sick = 0, self.np_random.random() < self._share
        return self._seen(), {}

    def step(self, action):
        self._step += 1
        reward = float("nan") if self._has_fit("reward") else float(np.sum(action))
        return self._seen(), reward, False, self._step >= 12, {}

    def _seen(self):
        obs = self.np_random.standard_normal(3).astype(np.float32)
        obs[1] = np.nan if self._has_fit("obs") else obs[1]
        return obs

    def _has_fit(self, kind):
        return self._is_sick and self._kind == kind and self._step == 5


gymnasium.register("SickObs-v0", Sick, kwargs={"share": 1.0, "kind": "obs"})
gymnasium.register("SickNumbers-v0", Sick, kwargs={"share": 1.0, "kind": "obs", "numbers": True})
gymnasium.register("SickReward-v0", Sick, kwargs={"share": 1.0, "kind": "reward"})
gymnasium.register("SeldomSick-v0", Sick, kwargs={"share": 0.12, "kind": "obs"})
"""
"""Environments with one NaN in the sixth row of every episode, or of some."""


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Iterator[Killer]:
    """Commands that can import the sick environments."""
    home = tmp_path_factory.mktemp("sick")
    (home / "sick_pkg.py").write_text(PACKAGE)
    one = Killer(home, f"{repo_root / 'src'}:{home}")
    yield one
    one.close()


def started(killer: Killer, run: Path, task: str, *more: str, kill: Kill | None = None) -> Ended:
    return killer.run("train", *SMALL_RUN, f"task={task}", f"logdir={run}", *more, kill=kill)


def black_box(run: Path) -> Path:
    (folder,) = (run / "blackbox").iterdir()
    return folder


def check_stopped(ended: Ended, run: Path) -> None:
    assert ended.code == 1, ended.output
    assert "Traceback" not in ended.output
    *before, last = ended.output.strip().splitlines()
    assert last.startswith("reverie: stopped: 5 updates in a row")
    assert not any(line.startswith("reverie: ") for line in before)
    assert f"reverie replay-update {black_box(run)}`" in last
    assert status(run) == "failed"
    assert sorted(path.name for path in black_box(run).iterdir()) == [
        "arrays.safetensors",
        "manifest.json",
        "state.json",
    ]


@pytest.fixture(scope="module")
def stopped(sick: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that a NaN in every episode has stopped. To be copied."""
    run = tmp_path_factory.mktemp("stopped") / "run"
    check_stopped(started(sick, run, "gym:sick_pkg:SickObs-v0"), run)
    return run


def test_the_observation_is_named_by_the_folder_alone(stopped: Path, killer: Killer, tmp_path: Path) -> None:
    """Elsewhere, without the run, and where its simulator cannot be imported."""
    folder = tmp_path / "box"
    shutil.copytree(black_box(stopped), folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ended = killer.run("replay-update", str(folder))
    assert ended.code == 0, ended.output
    assert re.search(r"^first non-finite tensor: the batch's obs/vector\[\d, \d, 1\] is nan", ended.output, re.M)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    told = json.loads(killer.run("replay-update", str(folder), "--json").output)
    assert (told["finding"]["kind"], told["finding"]["name"], told["is_skipped"]) == ("batch", "obs/vector", True)


def test_the_reward_is_named(sick: Killer, killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    check_stopped(started(sick, run, "gym:sick_pkg:SickReward-v0"), run)
    ended = killer.run("replay-update", str(black_box(run)))
    assert ended.code == 0, ended.output
    assert "the batch's reward[" in ended.output


def test_weights_that_explode_are_replayed_with_the_same_numbers(killer: Killer, tmp_path: Path) -> None:
    """Nothing is wrong with the data here: all of it comes from the learning rate."""
    run = tmp_path / "run"
    check_stopped(started(killer, run, "gym_CartPole-v1", "optimizers.model.learning_rate=1e30"), run)
    ended = killer.run("replay-update", str(black_box(run)), "--json")
    assert ended.code == 0, ended.output
    told = json.loads(ended.output)
    assert told["finding"]["kind"] in ("output", "loss")
    recorded: dict[str, Any] = read_black_box(black_box(run))["metrics"][-1]
    assert recorded.pop("updates") == told["updates"]
    assert {name: repr(float(value)) for name, value in told["metrics"].items()} == {
        name: repr(value) for name, value in recorded.items()
    }


def test_an_infinite_learning_rate_moves_no_weight(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    check_stopped(started(killer, run, "gym_CartPole-v1", "optimizers.model.learning_rate=inf"), run)
    ended = killer.run("replay-update", str(black_box(run)))
    assert ended.code == 0, ended.output
    assert "the metric learning_rate is nan" in ended.output
    memory = read_black_box(black_box(run))["workflow"]["optimizers"]["model"]
    assert memory["updates"] == 0
    assert not any(mean.any() for mean in memory["mean"].values())


def test_a_stopped_run_can_be_resumed(stopped: Path, sick: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(stopped, run)
    checkpoint = checkpoint_names(run)[-1]
    again = sick.run("resume", str(run), "--allow", "sick_pkg")
    check_stopped(again, run)
    assert f"(checkpoint {checkpoint})" in again.output
    ended = sick.run("resume", str(run), "training.max_skipped_updates=1000", "--allow", "sick_pkg")
    assert ended.code == 0, ended.output
    assert status(run) == "finished"
    *_, last = (line for line in metric_lines(run) if "train/skipped_updates" in line)
    assert 5 < last["train/skipped_updates"] <= last["updates"]


def test_some_bad_batches_do_not_stop_a_run_and_a_resume_is_exact(sick: Killer, tmp_path: Path) -> None:
    task, run, reference = "gym:sick_pkg:SeldomSick-v0", tmp_path / "run", tmp_path / "reference"
    ended = started(sick, reference, task)
    assert ended.code == 0, ended.output
    assert ended.output.count("An update was skipped") == 1
    lines = [line for line in metric_lines(reference) if "train/skipped_updates" in line]
    assert 0 < lines[-1]["train/skipped_updates"] < lines[-1]["updates"]
    shares = [line["train/skipped"] for line in lines if "train/skipped" in line]
    assert 0 in shares
    assert max(shares) > 0
    assert not (reference / "blackbox").exists()
    kill = Kill("reverie.workflows.dreamer:Dreamer.update", "after", 14)
    assert started(sick, run, task, kill=kill).code == -signal.SIGKILL
    shutil.copytree(run, tmp_path / "forgetful")
    ended = sick.run("resume", str(run), "--allow", "sick_pkg")
    assert ended.code == 0, ended.output
    assert differences(run, reference) == []
    forget = Forget("reverie.orchestration.update_guard:UpdateGuard.set_state")
    assert sick.run("resume", str(tmp_path / "forgetful"), "--allow", "sick_pkg", forget=forget).code == 0
    assert any("skipped_updates" in place for place in differences(tmp_path / "forgetful", reference))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 4
    path.write_bytes(data)


@pytest.mark.parametrize("file", ["state.json", "arrays.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink])
def test_a_damaged_folder_is_refused_with_one_sentence(
    damage: Callable[[Path], None], file: str, stopped: Path, killer: Killer, tmp_path: Path
) -> None:
    folder = tmp_path / "box"
    shutil.copytree(black_box(stopped), folder)
    damage(folder / file)
    check_refused(killer.run("replay-update", str(folder)), file)


def test_other_folders_are_refused_with_one_sentence(stopped: Path, killer: Killer) -> None:
    check_refused(killer.run("replay-update", str(stopped)), "is not a black box", "manifest.json")
    checkpoint = stopped / "checkpoints" / checkpoint_names(stopped)[-1]
    check_refused(killer.run("replay-update", str(checkpoint)), "is not a black box", "something else")
    check_refused(killer.run("replay-update", str(stopped / "nowhere")), "is not a black box")


def test_a_strangers_black_box_executes_nothing(stopped: Path, killer: Killer, tmp_path: Path) -> None:
    box, mark = read_black_box(black_box(stopped)), tmp_path / "mark"
    box["config"]["components"]["encoder"] = {"_target_": "os.system", "command": f"touch {mark}"}
    write_state_folder(tmp_path / "target", box, {})
    check_refused(killer.run("replay-update", str(tmp_path / "target")), "outside Reverie", "--allow")
    box = read_black_box(black_box(stopped)) | {"hook": "set_state"}
    write_state_folder(tmp_path / "hook", box, {})
    check_refused(killer.run("replay-update", str(tmp_path / "hook")), "no phase of its config has")
    box = read_black_box(black_box(stopped))
    box["workflow"]["components"]["encoder"].popitem()
    write_state_folder(tmp_path / "size", box, {})
    check_refused(killer.run("replay-update", str(tmp_path / "size")), "was made by a model of another size")
    assert not mark.exists()


def test_what_was_drawn_on_another_device_cannot_be_drawn_again(stopped: Path, killer: Killer, tmp_path: Path) -> None:
    box = read_black_box(black_box(stopped))
    write_state_folder(tmp_path / "box", box | {"device": "cuda:0", "random_streams": {}}, {})
    ended = killer.run("replay-update", str(tmp_path / "box"))
    assert ended.code == 0, ended.output
    assert "the run was on cuda:0: the random draws of this update are others here" in ended.output


def test_a_sound_update_says_so_and_exits_with_1(stopped: Path, killer: Killer, tmp_path: Path) -> None:
    box = read_black_box(black_box(stopped))
    box["batch"]["obs"]["vector"].nan_to_num_()
    write_state_folder(tmp_path / "box", box, {})
    ended = killer.run("replay-update", str(tmp_path / "box"))
    assert ended.code == 1, ended.output
    assert "everything is finite on the CPU" in ended.output
    assert json.loads(killer.run("replay-update", str(tmp_path / "box"), "--json").output)["finding"] is None


def test_the_limit_must_be_a_positive_number(killer: Killer, tmp_path: Path) -> None:
    ended = started(killer, tmp_path / "run", "gym_CartPole-v1", "training.max_skipped_updates=0")
    check_refused(ended, "training.max_skipped_updates", "at least 1")
    assert not (tmp_path / "run").exists()


def check_refused(ended: Ended, *words: str) -> None:
    """Exit code 2 and one line for the user that holds the words."""
    assert ended.code == 2, ended.output
    (sentence,) = ended.output.strip().splitlines()
    assert sentence.startswith("reverie: ")
    for word in words:
        assert word in sentence
