"""Crafter: the library's own frames, one world per seed in every process, and the score of the paper."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import crafter
import numpy as np
import opensimplex
import pytest

from reverie.environments.crafter import CrafterEnvironment, OrderedSet, task_info, task_names
from reverie.environments.crafter_noise import FixedNoise
from reverie.types import ReverieError, Space, Timestep

STEPS = 185
"""Into the first night, whose noise is drawn from the world's generator: it is dark from step 148 to step 272."""

WALK = """
import sys
from test_crafter import digest
ballast = [bytearray(int(sys.argv[1])) for _ in range(int(sys.argv[1]))]  # moves what comes after it in memory
print(digest())
"""


def env(task: str = "crafter_reward", **options: Any) -> CrafterEnvironment:
    return CrafterEnvironment(task=task, **options)


def actions(steps: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 17, steps)


def walk(one: CrafterEnvironment, seed: int, chosen: np.ndarray) -> list[Timestep]:
    seen = [one.reset(seed)]
    for action in chosen:
        if seen[-1].is_last:
            break
        seen.append(one.step(action))
    return seen


def bits(seen: list[Timestep]) -> list[tuple[bytes, float, bool, bool, bool]]:
    return [(one.obs["image"].tobytes(), one.reward, one.is_first, one.is_last, one.is_terminal) for one in seen]


def creatures(one: CrafterEnvironment) -> str:
    return repr([(type(each).__name__, each.pos.tolist()) for each in one._env._world.objects])


def digest() -> str:
    """Everything that an episode shows, and where every creature stands at its end.

    With the library's own sets this walk differs from one process to the next, with a fixed hash seed too.
    """
    one, sha = env(), hashlib.sha256()
    for timestep in walk(one, 3, actions(STEPS)):
        sha.update(timestep.obs["image"].tobytes() + np.float64(timestep.reward).tobytes())
    sha.update(creatures(one).encode())
    return sha.hexdigest()


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5, 2**31 - 1])
def test_the_world_is_that_of_the_library_to_the_last_creature(seed: int) -> None:
    """And so is its generator, or the first steps would draw something else."""
    bare, ours = crafter.Env(seed=seed), env()
    ours.reset(seed)
    bare.reset()
    assert np.array_equal(ours._env._world._mat_map, bare._world._mat_map)
    assert np.array_equal(ours._env._world._obj_map, bare._world._obj_map)
    assert creatures(ours) == repr([(type(each).__name__, each.pos.tolist()) for each in bare._world.objects])
    assert ours._env._world.random.random_sample() == bare._world.random.random_sample()
    assert {"path", "coal", "tree", "sand"} <= {bare._world._mat_names[one] for one in np.unique(bare._world._mat_map)}


def test_the_noise_of_fixed_points_is_that_of_the_library() -> None:
    points = [tuple(point) for point in np.random.default_rng(0).uniform(-40, 40, (500, 3)).tolist()]
    noise = FixedNoise(opensimplex, points)
    for seed in (0, 7):
        simplex = opensimplex.OpenSimplex(seed)
        assert noise.values(seed).tolist() == [simplex.noise3d(*point) for point in points]


def test_the_frames_are_those_of_the_library() -> None:
    bare, ours = crafter.Env(seed=11), env()
    ours.reset(5)  # what came before leaves no trace
    seen = [ours.reset(11)]
    assert np.array_equal(seen[0].obs["image"], bare.reset())
    # From step 10 on the library itself depends on memory addresses, so that only these nine can be compared.
    for action in actions(9):
        image, reward, _, _ = bare.step(int(action))
        seen.append(ours.step(action))
        assert np.array_equal(seen[-1].obs["image"], image)
        assert seen[-1].reward == reward


def test_the_frames_are_those_of_the_library_when_its_sets_keep_their_order() -> None:
    bare, ours = crafter.Env(seed=4, size=(90, 90)), env(size=90)
    plain_reset = bare._world.reset

    def reset(seed: int | None = None) -> None:
        plain_reset(seed)
        bare._world._chunks.default_factory = OrderedSet

    bare._world.reset = reset
    seen = [ours.reset(4)]
    assert np.array_equal(seen[0].obs["image"], bare.reset())
    for action in actions(40):
        image, reward, is_last, info = bare.step(int(action))
        seen.append(ours.step(action))
        assert np.array_equal(seen[-1].obs["image"], image)
        assert (seen[-1].reward, seen[-1].is_last) == (reward, is_last)
        assert seen[-1].is_terminal == (info["discount"] == 0)
        if is_last:
            break
    assert len(seen) > 30


def test_every_process_plays_the_same_episode() -> None:
    """Other hash seeds, other memory: the negative control below shows that memory would matter."""
    here = digest()
    for hash_seed, ballast in (("1", "10"), ("0", "700")):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        done = subprocess.run(
            [sys.executable, "-c", WALK, ballast], env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == here


def test_the_order_of_the_creatures_decides_which_one_vanishes() -> None:
    """The negative control: with sets that are walked backwards, the same seed and actions give another world."""

    class Backwards(OrderedSet):
        def __iter__(self) -> Any:
            return reversed(self)

    ours, other = env(), env()
    plain_reset = other._env._world.reset

    def reset(seed: int | None = None) -> None:
        plain_reset(seed)
        other._env._world._chunks.default_factory = Backwards

    other._env._world.reset = reset
    walk(ours, 3, actions(STEPS))
    walk(other, 3, actions(STEPS))
    assert creatures(ours) != creatures(other)


def test_an_episode_comes_back_by_replay_without_drawing_it() -> None:
    ours, other = env(), env()
    chosen = actions(120, seed=1)
    seen = walk(ours, 21, chosen)
    half = len(seen) // 2
    other.reset(9)
    assert bits([other.replay(21, chosen[:half])]) == bits([seen[half]])
    assert bits([other.step(action) for action in chosen[half : len(seen) - 1]]) == bits(seen[half + 1 :])
    assert bits([other.replay(21, chosen[:0])]) == bits(seen[:1])
    beyond = other.replay(21, np.concatenate([chosen[: len(seen) - 1], np.zeros(3, np.int64)]))
    assert beyond.is_last == seen[-1].is_last


def test_the_noise_of_the_night_is_part_of_the_replay() -> None:
    chosen = actions(STEPS)
    seen = walk(env(), 8, chosen)
    assert len(seen) > 170
    assert bits([env().replay(8, chosen[: len(seen) - 1])]) == bits(seen[-1:])


def test_a_time_limit_is_not_a_death() -> None:
    seen = walk(env(episode_steps=7), 0, np.zeros(20, np.int64))
    assert len(seen) == 8
    assert [one.is_last for one in seen] == [False] * 7 + [True]
    assert not seen[-1].is_terminal
    assert all(one.scores == {} for one in seen[:-1])
    assert len(seen[-1].scores) == 22


def test_a_death_is_terminal_and_the_scores_name_what_was_unlocked() -> None:
    ours = env()
    ours.reset(0)
    ours._env._player.inventory["sapling"] = 1
    rewards = [ours.step(np.array(crafter.constants.actions.index("place_plant"))).reward]
    ours._env._player.health = 0
    last = ours.step(np.array(0))
    assert last.is_last
    assert last.is_terminal
    assert last.scores["achievement/collect_wood"] == 0.0
    unlocked = [name for name, value in last.scores.items() if value == 1.0]
    assert unlocked == ["achievement/place_plant"]
    assert rewards == [1.0]


def test_noreward_plays_the_same_game_for_nothing() -> None:
    chosen = actions(80, seed=3)
    paid, unpaid = walk(env(), 6, chosen), walk(env("crafter_noreward"), 6, chosen)
    assert [one.obs["image"].tobytes() for one in paid] == [one.obs["image"].tobytes() for one in unpaid]
    assert any(one.reward != 0 for one in paid)
    assert all(one.reward == 0 for one in unpaid)


def test_the_score_is_that_of_the_paper() -> None:
    rates = {f"achievement/{index}": rate for index, rate in enumerate((0.0, 0.5, 1.0))}
    expected = ((1 + 0) * (1 + 50) * (1 + 100)) ** (1 / 3) - 1
    assert math.isclose(CrafterEnvironment.summary({**rates, "other": 3.0})["crafter_score"], expected)
    assert CrafterEnvironment.summary({"other": 1.0}) == {}


def test_spaces_and_tasks() -> None:
    ours = env(size=32)
    assert ours.spaces.obs == {"image": Space(shape=(32, 32, 3), dtype="uint8")}
    assert ours.spaces.action == Space(shape=(), dtype="int64", classes=17)
    first = ours.reset(0)
    assert first.obs["image"].shape == (32, 32, 3)
    assert first.obs["image"].flags.c_contiguous
    kept = first.obs["image"].copy()
    ours.step(np.array(1))
    assert np.array_equal(first.obs["image"], kept)
    info = task_info("crafter_reward")
    assert (info.episode_steps, info.frames_per_step, info.problem) == (10_000, 1, None)
    assert task_names() == ["crafter_reward", "crafter_noreward"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": "crafter_rewards"}, "did you mean crafter_reward?"),
        ({"task": "crafter_xyz123"}, "`tasks crafter` lists"),
        ({"task": "crafter_reward", "size": 9}, "`size` must be at least 18"),
        ({"task": "crafter_reward", "episode_steps": 0}, "`episode_steps` must be at least 1"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence.replace("?", r"\?")):
        CrafterEnvironment(**arguments)


def test_an_action_outside_is_refused() -> None:
    ours = env()
    ours.reset(0)
    with pytest.raises(ValueError, match="outside 0 to 16"):
        ours.step(np.array(-1))


def test_without_its_package_the_suite_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "crafter", None)
    problem = task_info("crafter_reward").problem
    assert problem is not None
    assert problem.endswith("run pip install 'reverie[crafter]'.")
    assert "crafter_reward" in task_names()
