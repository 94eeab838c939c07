"""Procgen and the fast CarRacing through EnvPool: its own frames, rows in their place, and levels by seed."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import Any

import envpool
import numpy as np
import pytest
from PIL import Image

from reverie.environments.carracing_fast import CarracingBatch
from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.procgen import ProcgenBatch, task_info, task_names
from reverie.types import ReverieError, Space


def procgen(game: str = "coinrun", **options: Any) -> ProcgenBatch:
    return ProcgenBatch(**{"task": f"procgen_{game}", "num_envs": 2, "seed": 5, "num_threads": 1, **options})


def racing(**options: Any) -> CarracingBatch:
    return CarracingBatch(**{"task": "carracing_continuous", "num_envs": 2, "seed": 5, "num_threads": 1, **options})


def walk(one: BatchSimulator, steps: int) -> list[BatchTimestep]:
    rng = np.random.default_rng(0)
    seen = [one.reset()]
    for _ in range(steps):
        action = rng.integers(0, 15, one.num_envs) if one.spaces.action.is_discrete else drive(rng, one.num_envs)
        seen.append(one.step(action))
    return seen


def drive(rng: np.random.Generator, num_envs: int) -> np.ndarray:
    """Mostly gas, and a little outside [-1, 1], so that clipping is part of the drive."""
    low, high = np.array([-0.3, 0.5, -1.2]), np.array([0.3, 1.2, -0.9])
    return rng.uniform(low, high, (num_envs, 3)).astype(np.float32)


def images(seen: list[BatchTimestep]) -> list[bytes]:
    return [step.obs["image"].tobytes() for step in seen]


def assert_rows(seen: list[BatchTimestep]) -> None:
    for now, after in pairwise(seen):
        assert np.array_equal(after.is_first, now.is_last)
    for step in seen:
        assert not (step.is_terminal & ~step.is_last).any()
        assert not step.reward[step.is_first].any()


@pytest.mark.parametrize("task", task_names())
def test_every_game_of_procgen_steps(task: str) -> None:
    info = task_info(task)
    assert (info.observation, info.action, info.problem) == ("image: uint8 64x64x3", "1 of 15", None)
    assert info.episode_steps is not None
    assert 500 <= info.episode_steps <= 6000
    one = procgen(task=task)
    seen = walk(one, 20)
    assert_rows(seen)
    assert len(set(images(seen))) > 1
    one.close()


def test_frames_and_rewards_are_those_of_envpool() -> None:
    bare = envpool.make("StarpilotHard-v0", env_type="gymnasium", num_envs=2, seed=5, num_threads=1)
    obs, _ = bare.reset()
    rng = np.random.default_rng(0)
    seen = walk(procgen("starpilot"), 80)
    assert np.array_equal(seen[0].obs["image"], obs.transpose(0, 2, 3, 1))
    for step in seen[1:]:
        obs, reward, terminated, truncated, _ = bare.step(rng.integers(0, 15, 2).astype(np.int32))
        assert np.array_equal(step.obs["image"], obs.transpose(0, 2, 3, 1))
        assert np.array_equal(step.reward, reward)
        assert np.array_equal(step.is_terminal, terminated)
        assert np.array_equal(step.is_last, terminated | truncated)


def test_ends_are_terminal_and_rows_stay_in_place() -> None:
    seen = walk(procgen("bossfight"), 150)
    assert_rows(seen)
    ends = [step for step in seen if step.is_last.any()]
    assert ends
    assert all(np.array_equal(step.is_terminal, step.is_last) for step in ends)


def test_the_time_limit_of_a_game_is_not_terminal() -> None:
    one = procgen("leaper")
    assert one.episode_steps == 500
    one.reset()
    still = np.full(2, 4)  # the agent stays where it is
    seen = [one.step(still) for _ in range(500)]
    assert seen[-1].is_last.all()
    assert not seen[-1].is_terminal.any()
    assert not any(step.is_last.any() for step in seen[:-1])


def test_the_seed_decides_the_levels() -> None:
    first, again, other = (walk(procgen(seed=seed), 10) for seed in (5, 5, 6))
    assert images(first) == images(again) != images(other)
    assert not np.array_equal(*first[0].obs["image"])  # two environments, two levels
    few = walk(procgen(num_levels=1, start_level=7), 0)
    assert np.array_equal(*few[0].obs["image"])  # only one level to choose from


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "procgen_coinrum"}, "did you mean procgen_coinrun"),
        ({"distribution_mode": "extreme"}, "must be one of easy, hard, exploration, got extreme"),
        ({"num_levels": -1}, "num_levels` must be at least 0"),
        ({"start_level": -1}, "start_level` must be at least 0"),
        ({"num_envs": 0}, "num_envs` must be at least 1"),
        ({"num_threads": -1}, "num_threads` must be at least 0"),
    ],
)
def test_wrong_options_of_procgen_end_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        procgen(**options)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_qt(name: str, **_: Any) -> None:
        raise ImportError("needs Qt") from ImportError("libQt5Gui.so.5: cannot open shared object file")

    monkeypatch.setattr(envpool, "make", without_qt)
    problem = task_info("procgen_maze").problem
    assert problem is not None
    assert "(libQt5Gui.so.5: cannot open shared object file): run apt install libqt5gui5" in problem
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert "pip install 'reverie[procgen]'" in (task_info("procgen_maze").problem or "")


def test_actions_that_do_not_exist_are_refused() -> None:
    one = procgen()
    one.reset()
    with pytest.raises(ValueError, match="outside 0 to 14"):
        one.step(np.array([0, 15]))


def test_the_fast_car_is_envpools_without_the_dashboard() -> None:
    one = racing()
    assert one.spaces.obs == {"image": Space(shape=(64, 64, 3), dtype="uint8")}
    bare = envpool.make("CarRacing-v3", env_type="gymnasium", num_envs=2, seed=5, num_threads=1)
    obs, _ = bare.reset()
    rng = np.random.default_rng(0)
    seen = walk(one, 30)
    assert np.array_equal(seen[0].obs["image"], np.stack([road(screen) for screen in obs]))
    for step in seen[1:]:
        action = np.clip(drive(rng, 2), -1, 1)
        obs, reward, *_ = bare.step(np.stack([action[:, 0], (action[:, 1] + 1) / 2, (action[:, 2] + 1) / 2], -1))
        assert np.array_equal(step.obs["image"], np.stack([road(screen) for screen in obs]))
        assert np.array_equal(step.reward, reward)
    assert sum(float(step.reward.sum()) for step in seen) > 0


def road(screen: np.ndarray) -> np.ndarray:
    return np.array(Image.fromarray(screen[:84]).resize((64, 64), Image.Resampling.BILINEAR))


def test_the_time_limit_of_the_fast_car() -> None:
    seen = walk(racing(episode_frames=10, size=96, has_dashboard=True), 25)
    assert [index for index, step in enumerate(seen) if step.is_last.all()] == [10, 21]
    assert not any(step.is_terminal.any() for step in seen)
    assert_rows(seen)


def test_what_was_given_does_not_change() -> None:
    for one in (procgen(), racing(size=96, has_dashboard=True)):
        first = one.reset()
        kept = first.obs["image"].copy()
        walked = [one.step(np.zeros((2, *one.spaces.action.shape), one.spaces.action.dtype)) for _ in range(20)]
        assert np.array_equal(first.obs["image"], kept)
        assert len(set(images(walked))) > 1
        one.close()
        one.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"task": "carracing_discrete"}, "There is no task carracing_discrete"),
        ({"episode_frames": 0}, "episode_frames` must be at least 1"),
        ({"size": 1}, "size` must be at least 8"),
    ],
)
def test_wrong_options_of_the_fast_car_end_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        racing(**options)
