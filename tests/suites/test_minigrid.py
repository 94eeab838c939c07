"""MiniGrid and BabyAI: the library's own views, missions as vectors, and every level."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from minigrid.core.constants import COLOR_NAMES
from minigrid.wrappers import OneHotPartialObsWrapper, RGBImgPartialObsWrapper

from reverie.environments.minigrid import MinigridEnvironment, example_task, task_info, task_names
from reverie.environments.minigrid_mission import VOCABULARY, MissionCodes, MissionWords
from reverie.types import ReverieError, Space, Timestep

TASKS = task_names()
GROWN = [task for task in TASKS if "_WFC-" in task]
"""Levels that grow from pictures, which the package minigrid 3.2.0 does not bring along."""


def bare(name: str) -> Any:
    return gymnasium.make(name, disable_env_checker=True)


def walk(one: MinigridEnvironment, seed: int, steps: int) -> list[Timestep]:
    rng = np.random.default_rng(seed)
    seen = [one.reset(seed)]
    while len(seen) <= steps and not seen[-1].is_last:
        seen.append(one.step(rng.integers(0, one.spaces.action.dim)))
    return seen


def bits(seen: list[Timestep]) -> list[Any]:
    return [
        ({key: value.tobytes() for key, value in one.obs.items()}, one.reward, one.is_last, one.is_terminal)
        for one in seen
    ]


def digest(tasks: list[str], steps: int) -> str:
    sha = hashlib.sha256()
    for task in tasks:
        sha.update(repr(bits(walk(MinigridEnvironment(task=task), 7, steps))).encode())
    return sha.hexdigest()


@pytest.mark.parametrize("name", ["DoorKey-8x8-v0", "Dynamic-Obstacles-6x6-v0"])
def test_the_symbolic_view_is_the_one_hot_view_of_the_library(name: str) -> None:
    ours, native = MinigridEnvironment(task=f"minigrid_{name}"), OneHotPartialObsWrapper(bare(f"MiniGrid-{name}"))
    first, expected = ours.reset(4), native.reset(seed=4)[0]
    assert np.array_equal(first.obs["view"], expected["image"].reshape(-1).astype(np.float32))
    rng = np.random.default_rng(0)
    for action in rng.integers(0, ours.spaces.action.dim, 60):
        now, (expected, reward, terminated, truncated, _) = ours.step(action), native.step(int(action))
        assert np.array_equal(now.obs["view"], expected["image"].reshape(-1).astype(np.float32))
        assert int(now.obs["direction"]) == expected["direction"]
        assert (now.reward, now.is_terminal, now.is_last) == (reward, terminated, terminated or truncated)
        if now.is_last:
            break


def test_the_image_is_the_drawing_of_the_library_with_a_black_border() -> None:
    ours = MinigridEnvironment(task="minigrid_DoorKey-8x8-v0", observation="image", size=66)
    native = RGBImgPartialObsWrapper(bare("MiniGrid-DoorKey-8x8-v0"), tile_size=9)
    image, expected = ours.reset(4).obs["image"], native.reset(seed=4)[0]["image"]
    assert image.shape == (66, 66, 3)
    assert expected.shape == (63, 63, 3)
    assert np.array_equal(image[1:64, 1:64], expected)
    image[1:64, 1:64] = 0
    assert not image.any()
    assert np.array_equal(ours.step(np.array(1)).obs["image"][1:64, 1:64], native.step(1)[0]["image"])
    plain = MinigridEnvironment(task="minigrid_DoorKey-8x8-v0", observation="image").reset(4).obs["image"]
    assert np.array_equal(plain[:63, :63], expected)


def test_every_level_resets_and_steps_and_its_mission_fits() -> None:
    assert len(TASKS) >= 170
    for task in TASKS:
        if task in GROWN:
            continue
        one = MinigridEnvironment(task=task)
        for seen in walk(one, 1, 5):
            assert seen.obs.keys() == one.spaces.obs.keys()
            for key, space in one.spaces.obs.items():
                assert (seen.obs[key].shape, seen.obs[key].dtype) == (space.shape, np.dtype(space.dtype))
        for seed in range(2, 6):
            one.reset(seed)
        one.close()


def test_a_level_without_its_pictures_says_so() -> None:
    for task in GROWN:
        problem = task_info(task).problem
        assert problem is None or "missing from the package minigrid" in problem
        if problem is None:
            assert MinigridEnvironment(task=task).reset(0).is_first


def test_every_process_plays_the_same_levels() -> None:
    tasks = [task for task in TASKS if "Seq" in task or "Obstacles-R" in task or "ObstructedMaze-2" in task]
    assert len(tasks) >= 6
    code = f"from test_minigrid import digest\nprint(digest({tasks!r}, 30))"
    environment = {**os.environ, "PYTHONHASHSEED": "11"}
    environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [digest(tasks, 30)]  # and nothing else is printed


@pytest.mark.parametrize("task", ["minigrid_Dynamic-Obstacles-8x8-v0", "minigrid_BabyAI-SynthSeq-v0"])
def test_an_episode_comes_back_by_replay(task: str) -> None:
    ours, other = MinigridEnvironment(task=task), MinigridEnvironment(task=task)
    walk(other, 3, 10)  # what came before leaves no trace
    ours.reset(9)
    actions = np.array([2, 1, 2, 2, 0, 2, 1])
    last = ours.reset(9)
    for action in actions:
        last = last if last.is_last else ours.step(action)
    assert bits([other.replay(9, actions)]) == bits([last])


def test_a_time_limit_is_not_terminal_and_a_goal_is() -> None:
    ours = MinigridEnvironment(task="minigrid_Empty-5x5-v0")
    ours.reset(0)
    turns = [ours.step(np.array(0)) for _ in range(100)]
    assert task_info("minigrid_Empty-5x5-v0").episode_steps == 100
    assert [one.is_last for one in turns] == [False] * 99 + [True]
    assert not turns[-1].is_terminal
    assert turns[-1].scores == {"success": 0.0}
    ours.reset(0)
    steps = [ours.step(np.array(action)) for action in (2, 2, 1, 2, 2)]
    assert steps[-1].is_terminal
    assert steps[-1].is_last
    assert steps[-1].scores == {"success": 1.0}
    assert steps[-1].reward == 1 - 0.9 * 5 / 100
    assert all(one.scores == {} for one in steps[:-1])


def test_only_a_mission_that_varies_is_given() -> None:
    fixed = MinigridEnvironment(task="minigrid_DoorKey-5x5-v0").spaces.obs
    assert fixed == {
        "view": Space(shape=(980,), dtype="float32"),
        "direction": Space(shape=(), dtype="int64", classes=4),
    }
    assert MinigridEnvironment(task="minigrid_Fetch-5x5-N2-v0").spaces.obs["mission"].shape == (20 * 6,)
    assert MinigridEnvironment(task="minigrid_BabyAI-BossLevel-v0").spaces.obs["mission"].shape == (72 * 6,)
    assert "mission" not in MinigridEnvironment(task="minigrid_BabyAI-GoToLocal-v0", mission="none").spaces.obs
    forced = MinigridEnvironment(task="minigrid_DoorKey-5x5-v0", mission="words")
    assert forced.reset(0).obs["mission"].sum() == 13  # use the key to open the door and then get to the goal


def test_codes_keep_the_order_of_the_words() -> None:
    codes = MissionCodes(num_words=10, task="x")
    one = codes.value("put the red ball next to the green box")
    two = codes.value("put the green box next to the red ball")
    assert not np.array_equal(one, two)
    assert one.shape == (60,)
    places = one.reshape(10, 6)
    assert (np.abs(places[:9]) == 1).all()
    assert not places[9].any()
    numbers = ((places[:9] > 0) * 2 ** np.arange(6)).sum(-1) - 1
    assert " ".join(VOCABULARY[number] for number in numbers) == "put the red ball next to the green box"
    words = MissionWords(task="x")
    assert np.array_equal(words.value("go to the red ball"), words.value("the ball, go to red"))
    assert words.value("the red the")[VOCABULARY.index("the")] == 2.0
    assert not codes.value("").any()


def test_no_two_words_have_one_code() -> None:
    codes = MissionCodes(num_words=1, task="x")
    assert len({codes.value(word).tobytes() for word in VOCABULARY}) == len(VOCABULARY)
    assert set(COLOR_NAMES) <= set(VOCABULARY)


def test_a_mission_that_does_not_fit_ends_in_one_sentence() -> None:
    short = MinigridEnvironment(task="minigrid_BabyAI-GoToLocal-v0", mission_words=3)
    with pytest.raises(ReverieError, match=r"mission of 5 words, but mission_words is 3: set it to 5 or more\."):
        short.reset(0)
    with pytest.raises(ReverieError, match=r"not in the vocabulary \('zebra'\)"):
        MissionWords(task="x").value("go to the zebra")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": "minigrid_doorkey-8x8-v0"}, "did you mean minigrid_DoorKey-8x8-v0"),
        ({"task": "minigrid_zzzzqqqq123456"}, "`tasks minigrid` lists"),
        ({"observation": "pixels"}, "must be one of symbolic, image"),
        ({"mission": "yes"}, "must be one of auto, none, codes, words"),
        ({"observation": "image", "size": 6}, "`size` must be at least 7"),
        ({"mission_words": 0}, "`mission_words` must be at least 1"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        MinigridEnvironment(**{"task": "minigrid_DoorKey-5x5-v0", **arguments})


def test_an_action_outside_is_refused() -> None:
    ours = MinigridEnvironment(task="minigrid_Dynamic-Obstacles-5x5-v0")
    ours.reset(0)
    with pytest.raises(ValueError, match="outside 0 to 2"):
        ours.step(np.array(3))


def test_without_its_package_the_suite_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minigrid", None)
    problem = task_info("minigrid_DoorKey-8x8-v0").problem
    assert problem is not None
    assert problem.endswith("run pip install 'reverie[minigrid]'.")
    assert task_names()[0] == example_task() == "minigrid_DoorKey-8x8-v0"
