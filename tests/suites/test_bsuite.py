"""bsuite: every id of the sweep, the library's own episodes under a seed, and its measures of one episode."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import bsuite
import numpy as np
import pytest
from bsuite import sweep

from reverie.environments import bsuite as suite
from reverie.environments.bsuite import BsuiteEnvironment, task_info, task_names
from reverie.environments.bsuite_lengths import episode_rows, experiment_episodes
from reverie.types import ReverieError, Space, Timestep

ONE_OF_EACH = [task for task in task_names() if task.endswith("_3") and "mnist" not in task]


def walk(one: BsuiteEnvironment, seed: int, steps: int = 120) -> list[Timestep]:
    rng = np.random.default_rng(seed)
    seen = [one.reset(seed)]
    while len(seen) <= steps and not seen[-1].is_last:
        seen.append(one.step(rng.integers(0, one.spaces.action.dim)))
    return seen


def bits(seen: list[Timestep]) -> list[Any]:
    return [
        (one.obs["vector"].tobytes(), one.reward, one.is_first, one.is_last, one.is_terminal, dict(one.scores))
        for one in seen
    ]


def digest() -> str:
    sha = hashlib.sha256()
    for task in ONE_OF_EACH:
        sha.update(repr(bits(walk(BsuiteEnvironment(task=task), 7))).encode())
    return sha.hexdigest()


def test_the_tasks_are_the_ids_of_the_sweep() -> None:
    assert task_names() == [f"bsuite_{bsuite_id.replace('/', '_')}" for bsuite_id in sweep.SWEEP]
    assert len(ONE_OF_EACH) == len({bsuite_id.split("/")[0] for bsuite_id in sweep.SWEEP}) - 3


@pytest.mark.parametrize(
    ("task", "seeded"),
    [
        ("bsuite_catch_0", {"seed": 5}),
        ("bsuite_cartpole_2", {"seed": 5}),
        ("bsuite_cartpole_swingup_1", {"seed": 5}),
        ("bsuite_mountain_car_0", {"seed": 5}),
        ("bsuite_bandit_4", {}),
        ("bsuite_discounting_chain_1", {}),
        ("bsuite_deep_sea_0", {}),
    ],
)
def test_an_episode_is_that_of_the_library_with_the_same_seed(task: str, seeded: dict[str, int]) -> None:
    experiment, _, index = task.removeprefix("bsuite_").rpartition("_")
    native = bsuite.load(experiment, {**sweep.SETTINGS[f"{experiment}/{index}"], **seeded})
    ours = BsuiteEnvironment(task=task)
    walk(ours, 1, 3)  # what came before leaves no trace
    rng = np.random.default_rng(0)
    now, expected = ours.reset(5), native.reset()
    for _ in range(100):
        assert np.array_equal(now.obs["vector"], expected.observation.reshape(-1))
        if now.is_last:
            break
        action = rng.integers(0, ours.spaces.action.dim)
        now, expected = ours.step(action), native.step(int(action))
        assert (now.reward, now.is_last) == (expected.reward, expected.last())
        assert now.is_terminal == (expected.last() and expected.discount == 0)


def test_every_experiment_is_decided_by_the_seed_in_every_process() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", "from test_bsuite import digest\nprint(digest())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [digest()]  # and nothing else is printed


@pytest.mark.parametrize("task", ONE_OF_EACH)
def test_what_came_before_leaves_no_trace(task: str) -> None:
    ours, other = BsuiteEnvironment(task=task), BsuiteEnvironment(task=task)
    for seed in range(3):
        walk(other, seed)
    assert bits(walk(ours, 11)) == bits(walk(other, 11))


def test_another_seed_gives_another_episode() -> None:
    ours = BsuiteEnvironment(task="bsuite_cartpole_0")
    assert not np.array_equal(ours.reset(1).obs["vector"], ours.reset(2).obs["vector"])


@pytest.mark.parametrize(
    "task", ["bsuite_umbrella_distract_5", "bsuite_catch_noise_19", "bsuite_deep_sea_stochastic_0"]
)
def test_an_episode_comes_back_by_replay(task: str) -> None:
    ours, other = BsuiteEnvironment(task=task), BsuiteEnvironment(task=task)
    actions = np.array([1, 0, 1, 1, 0])
    last = [ours.reset(4), *(ours.step(action) for action in actions)][-1]
    walk(other, 2)
    assert bits([other.replay(4, actions)]) == bits([last])
    assert bits([other.step(np.array(1))]) == bits([ours.step(np.array(1))])


def test_noise_does_not_follow_the_environment() -> None:
    """With one seed for both, the first noise would be a function of the column that the ball falls in."""
    ours = BsuiteEnvironment(task="bsuite_catch_noise_19")
    seeds = [layer._rng.get_state()[1][:3].tolist() for layer in (ours.reset(5) and ours._layers)]
    assert len(seeds) == 2
    assert seeds[0] != seeds[1]
    noise = ours.step(np.array(1)).reward
    assert noise != 0.0


def test_an_end_is_terminal_and_brings_the_measures_of_this_episode() -> None:
    ours = BsuiteEnvironment(task="bsuite_catch_0")
    for seed in range(6):
        seen = walk(ours, seed)
        assert len(seen) == 10
        assert seen[-1].is_terminal
        assert all(one.scores == {} for one in seen[:-1])
        assert seen[-1].scores == {"regret": 1.0 - seen[-1].reward, "experiment_episodes": 10_000.0}
    scaled = BsuiteEnvironment(task="bsuite_mountain_car_scale_0")
    last = walk(scaled, 0, steps=1000)[-1]
    assert last.scores == {"raw_return": -1000.0, "experiment_episodes": 1000.0}
    assert last.reward == -0.001


def test_a_scripted_policy_solves_deep_sea() -> None:
    ours = BsuiteEnvironment(task="bsuite_deep_sea_0")
    now, total = ours.reset(0), 0.0
    while not now.is_last:
        row = int(now.obs["vector"].argmax()) // 10
        now = ours.step(ours._env._action_mapping[row, row])
        total += now.reward
    assert np.isclose(total, 0.99)
    assert now.scores == {"bad_episodes": 0.0, "denoised_return": 1.0, "experiment_episodes": 10_000.0}


def test_spaces_are_vectors() -> None:
    ours = BsuiteEnvironment(task="bsuite_catch_0")
    assert ours.spaces.obs == {"vector": Space(shape=(50,), dtype="float32")}
    assert ours.spaces.action == Space(shape=(), dtype="int64", classes=3)
    assert ours.reset(0).obs["vector"].dtype == np.float32
    info = task_info("bsuite_deep_sea_20")
    assert (info.observation, info.action, info.episode_steps) == ("vector: float32 2500", "1 of 2", None)


def test_mnist_without_its_files_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "_MNIST_FOLDER", tmp_path)
    problem = task_info("bsuite_mnist_noise_2").problem
    assert problem is not None
    assert "train-images-idx3-ubyte.gz" in problem
    for name in suite._MNIST_FILES:
        (tmp_path / name).touch()
    assert suite._has_mnist()


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("bsuite_catch/0", "did you mean bsuite_catch_0"),
        ("bsuite_catch_20", "did you mean bsuite_catch"),
        ("bsuite_qqqqqqqqqqqqqqq", "`tasks bsuite` lists"),
    ],
)
def test_an_unknown_task_ends_in_one_sentence(task: str, sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        BsuiteEnvironment(task=task)


def test_an_action_outside_is_refused() -> None:
    ours = BsuiteEnvironment(task="bsuite_catch_0")
    ours.reset(0)
    with pytest.raises(ValueError, match="outside 0 to 2"):
        ours.step(np.array(-1))


def test_without_its_package_the_suite_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bsuite", None)
    problem = task_info("bsuite_catch_0").problem
    assert problem is not None
    assert problem.endswith("run pip install 'reverie[bsuite]'.")
    assert len(task_names()) == 468


@pytest.mark.parametrize("task", [task for task in task_names() if task.rpartition("_")[2] in ("0", "7", "16")])
def test_the_length_of_an_experiment_is_that_of_its_episodes(task: str) -> None:
    bsuite_id = "/".join(task.removeprefix("bsuite_").rsplit("_", 1))
    assert experiment_episodes(task) == sweep.EPISODES[bsuite_id]
    assert suite.suite_steps(task) == experiment_episodes(task) * episode_rows(task)
    if "mnist" not in task:
        rows = len(walk(BsuiteEnvironment(task=task), 3, steps=1500))
        assert rows == episode_rows(task) or ("cartpole" in task and rows < episode_rows(task))


def test_an_episode_of_cartpole_lasts_no_longer_than_its_clock() -> None:
    """Swing-up with a pole that may hang: only the clock and the edge of the table end it."""
    one = BsuiteEnvironment(task="bsuite_cartpole_swingup_0")
    one.reset(0)
    rows = 1
    is_last = False
    while not is_last:
        is_last = one.step(np.array(1)).is_last  # no force
        rows += 1
    assert rows == episode_rows("bsuite_cartpole_swingup_0")
