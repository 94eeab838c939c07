"""All Atari games in one object: near to one game alone, and every row in its place."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from atari_games import preset

from reverie.environments.atari import AtariEnvironment
from reverie.environments.atari_fast import AtariBatch
from reverie.environments.base import environment_seed
from reverie.environments.parallel.batch_simulator import BatchTimestep
from reverie.types import ReverieError, Space


def batch(game: str = "pong", num_envs: int = 2, seed: int = 0, **options: Any) -> AtariBatch:
    return AtariBatch(task=f"atari_{game}", num_envs=num_envs, seed=seed, **{"num_threads": 1, **options})


def walk(one: AtariBatch, steps: int) -> list[BatchTimestep]:
    rng = np.random.default_rng(0)
    return [one.reset(), *(one.step(rng.integers(0, one.spaces.action.dim, one.num_envs)) for _ in range(steps))]


@pytest.mark.parametrize(("slow", "fast"), [("atari", "atari_fast"), ("atari100k", "atari100k_fast")])
def test_the_presets_have_the_spaces_and_options_of_the_slow_ones(slow: str, fast: str) -> None:
    given, like = preset(fast), preset(slow)
    given = {key: value for key, value in given.items() if key != "num_threads"}
    assert given == {key: like[key] for key in given}
    one, other = batch(**given), AtariEnvironment(task="atari_pong", **like)
    assert one.spaces == other.spaces
    assert one.frames_per_step == other.frames_per_step


def test_images_are_near_to_those_of_one_game_alone() -> None:
    """Resized by area and not bilinear, and without the three frames that a game alone lets pass at its start."""
    options: dict[str, Any] = {"sticky": 0.0, "noops": 0, "size": (84, 84)}
    one, alone = batch("breakout", 1, **options), AtariEnvironment(task="atari_breakout", **options)
    seen, other = one.reset().obs["image"][0], alone.reset(0).obs["image"]
    assert seen.shape == other.shape == (84, 84, 1)
    assert np.abs(seen.astype(int) - other).mean() < 3.0
    assert np.abs(seen[::-1].astype(int) - other).mean() > 10.0


def test_frames_are_stacked_in_the_channels_with_the_newest_last() -> None:
    one = batch(is_gray=False, frame_stack=2, size=(64, 48), sticky=0.0)
    assert one.spaces.obs == {"image": Space(shape=(64, 48, 6), dtype="uint8")}
    seen = walk(one, 30)
    assert not seen[0].obs["image"][..., :3].any()
    for now, after in pairwise(seen):
        assert np.array_equal(after.obs["image"][..., :3], now.obs["image"][..., 3:])
    bare = AtariVectorEnv("pong", 2, img_height=64, img_width=48, grayscale=False, stack_num=1, noop_max=31)
    obs, _ = bare.reset(seed=np.array([environment_seed(0, index, 0) for index in range(2)]))
    assert np.array_equal(seen[0].obs["image"][..., 3:], obs[:, 0])


def test_rewards_are_points() -> None:
    seen = walk(batch("ms_pacman", 1, noops=0), 120)
    assert max(float(step.reward.max()) for step in seen) >= 10.0


def test_rows_time_limits_and_ends() -> None:
    one = batch("pong", 2, max_frames=40, noops=0)
    seen = walk(one, 25)
    assert [index for index, step in enumerate(seen) if step.is_last.all()] == [10, 21]
    assert not any(step.is_terminal.any() for step in seen)
    for now, after in pairwise(seen):
        assert np.array_equal(after.is_first, now.is_last)
    assert not any(step.reward[step.is_first].any() for step in seen)


def test_a_lost_game_is_terminal() -> None:
    one = batch("breakout", 1, noops=0, sticky=0.0)
    one.reset()
    for index in range(1000):
        step = one.step(np.array([index % 2]))
        if step.is_last[0]:
            break
    assert step.is_terminal[0]
    assert one.step(np.array([0])).is_first[0]


def test_the_seed_decides_and_environments_differ() -> None:
    first, again, other = (walk(batch(seed=seed, noops=30), 20) for seed in (0, 0, 1))
    images = [[step.obs["image"].tobytes() for step in seen] for seen in (first, again, other)]
    assert images[0] == images[1] != images[2]
    assert any(not np.array_equal(*step.obs["image"]) for step in first)


def test_what_was_given_does_not_change() -> None:
    one = batch()
    first = one.reset()
    image, is_last = first.obs["image"].copy(), first.is_last.copy()
    for _ in range(20):
        one.step(np.array([2, 3]))
    assert np.array_equal(first.obs["image"], image)
    assert np.array_equal(first.is_last, is_last)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"game": "pongg"}, "did you mean atari_pong"),
        ({"num_envs": 0}, "num_envs` must be at least 1"),
        ({"noops": -1}, "noops` must be at least 0"),
        ({"frame_stack": 0}, "frame_stack` must be at least 1"),
        ({"sticky": 2.0}, "sticky` must be from 0.0 to 1.0"),
        ({"size": [1]}, r"size` must be \[height, width\]"),
    ],
)
def test_wrong_options_end_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        batch(**options)


def test_an_action_that_does_not_exist_is_refused() -> None:
    one = batch()
    one.reset()
    with pytest.raises(ValueError, match="outside 0 to 17"):
        one.step(np.array([0, 18]))
    one.close()
    one.close()
