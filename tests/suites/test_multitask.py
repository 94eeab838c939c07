"""The suite multitask, against the simulators that it plays."""

from __future__ import annotations

import numpy as np
import pytest

from reverie.environments.base import Environment
from reverie.environments.builtin import BuiltinEnvironment
from reverie.environments.gym import GymEnvironment
from reverie.environments.multitask import MultitaskEnvironment, task_info
from reverie.types import ReverieError


def actions(count: int) -> np.ndarray:
    return np.random.default_rng(0).uniform(-1, 1, (count, 2)).astype(np.float32)


def bare(number: int) -> Environment:
    return GymEnvironment(task="gym_Pendulum-v1") if number else BuiltinEnvironment(task="builtin_continuous")


@pytest.fixture(scope="module")
def seeds() -> list[int]:
    """One of each task."""
    env = MultitaskEnvironment(task="multitask_small")
    by_task = {int(env.reset(seed).obs["task"]): seed for seed in range(20)}
    return [by_task[0], by_task[1]]


@pytest.mark.parametrize("number", [0, 1])
def test_an_episode_is_that_of_the_bare_task_filled_up(seeds: list[int], number: int) -> None:
    env, alone = MultitaskEnvironment(task="multitask_small"), bare(number)
    seen, expected, total = env.reset(seeds[number]), alone.reset(seeds[number]), 0.0
    width, used = expected.obs["vector"].size, alone.spaces.action.dim
    for action in actions(300):
        assert seen.obs["state"][:width].tobytes() == expected.obs["vector"].tobytes()
        assert not seen.obs["state"][width:].any()
        assert seen.obs["task"] == number
        assert seen.obs["action_mask"].tolist() == [1.0] * used + [0.0] * (2 - used)
        assert (seen.reward, seen.is_last, seen.is_terminal) == (
            expected.reward,
            expected.is_last,
            expected.is_terminal,
        )
        if seen.is_last:
            break
        seen, expected = env.step(action), alone.step(action[:used])
        total += seen.reward
    assert seen.is_last
    assert seen.scores == {f"return/{alone.task}": pytest.approx(total)}


def test_all_tasks_come_about_as_often() -> None:
    env = MultitaskEnvironment(task="multitask_small")
    drawn = [int(env.reset(seed).obs["task"]) for seed in range(400)]
    assert 150 < sum(drawn) < 250


def test_it_comes_back_as_the_worst_of_its_tasks() -> None:
    assert MultitaskEnvironment(task="multitask_small").resume == "replay"
    own = MultitaskEnvironment(
        task="multitask_small", tasks=["gym_Pendulum-v1", "gym_MountainCarContinuous-v0"], options={"resume": "restart"}
    )
    assert own.resume == "restart"


def test_vectors_of_several_keys_are_joined_and_options_reach_the_simulators() -> None:
    env = MultitaskEnvironment(task="multitask_walker", options={"action_repeat": 2})
    assert env.frames_per_step == 2
    assert env.spaces.obs["state"].shape == (24,)  # orientations 14, height 1, velocity 9
    assert env.episode_steps == 500
    env.close()
    assert task_info("multitask_small").problem is None


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tasks": ["gym_Pendulum-v1"]}, "at least two tasks"),
        ({"tasks": ["gym_Pendulum-v1", "gym_Pendulum-v1"]}, "each once"),
        ({"tasks": ["gym_Pendulum-v1", "multitask_walker"]}, "may not name a set"),
        ({"tasks": ["gym_Pendulum-v1", "builtin_discrete"]}, "builtin_discrete cannot share an action"),
        ({"tasks": ["gym_Pendulum-v1", "carracing_continuous"]}, "'image' is not a vector"),
        ({"tasks": ["gym_Pendulum-v1", "gym_Pendulmu-v1"]}, "did you mean"),
        ({"options": {"actionrepeat": 2}}, "known to none of the tasks"),
        ({"options": {"action_repeat": 2}}, "the same frames per agent step"),
        ({"task": "multitask_smal"}, "did you mean multitask_small"),
    ],
)
def test_what_does_not_fit_is_a_sentence(given: dict[str, object], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        MultitaskEnvironment(**{"task": "multitask_small", **given})
