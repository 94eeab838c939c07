"""Push-T: the library's own physics and pixels, scaled actions, and the score of record."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gym_pusht  # noqa: F401  registers the environment
import gymnasium
import numpy as np
import pytest

from reverie.environments.pusht import PushTEnvironment, task_info, task_names
from reverie.types import ReverieError, Space, Timestep

SOLVED = np.array([256.0, 256.0, np.pi / 4])
"""Where the block lies on its goal."""


def bare(**options: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("gym_pusht/PushT-v0", disable_env_checker=True, **options)


def pushes(steps: int, seed: int = 0) -> np.ndarray:
    """Each held for five steps, so that the agent arrives and pushes the block."""
    places = np.random.default_rng(seed).uniform(-0.6, 0.6, (-(-steps // 5), 2))
    return np.repeat(places, 5, axis=0)[:steps].astype(np.float32)


def walk(one: PushTEnvironment, seed: int, actions: np.ndarray) -> list[Timestep]:
    return [one.reset(seed), *(one.step(action) for action in actions)]


def bits(seen: list[Timestep]) -> list[Any]:
    return [({key: value.tobytes() for key, value in one.obs.items()}, one.reward, one.is_last) for one in seen]


def digest() -> str:
    return hashlib.sha256(repr(bits(walk(PushTEnvironment(task="pusht_state"), 3, pushes(100)))).encode()).hexdigest()


def test_state_and_reward_are_those_of_the_library() -> None:
    ours, native = PushTEnvironment(task="pusht_state"), bare(obs_type="state")
    first, (expected, _) = ours.reset(3), native.reset(seed=3)
    assert np.array_equal(first.obs["vector"], expected.astype(np.float32))
    moved = []
    for action in pushes(60):
        place = ((action + 1) * 256).astype(np.float32)
        now, (expected, reward, *_) = ours.step(action), native.step(place)
        assert np.array_equal(now.obs["vector"], expected.astype(np.float32))
        assert np.isclose(now.reward, reward, rtol=1e-12)  # the library's last bit depends on memory addresses
        moved.append(now.obs["vector"][2:4])
    assert np.ptp(np.array(moved), axis=0).max() > 5  # the block was pushed


def test_pixels_are_those_of_the_library() -> None:
    ours, native = PushTEnvironment(task="pusht_pixels"), bare(obs_type="pixels_agent_pos")
    seen, expected = [ours.reset(3)], [native.reset(seed=3)[0]]
    for action in pushes(6):
        seen.append(ours.step(action))
        expected.append(native.step(((action + 1) * 256).astype(np.float32))[0])
    for one, other in zip(seen, expected, strict=True):
        assert one.obs["image"].shape == (96, 96, 3)
        assert np.array_equal(one.obs["image"], other["pixels"])
        assert np.array_equal(one.obs["agent"], other["agent_pos"].astype(np.float32))
    assert not np.array_equal(seen[0].obs["image"], seen[-1].obs["image"])


def test_actions_are_clipped_and_cover_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = PushTEnvironment(task="pusht_state")
    ours.reset(0)
    given = []
    plain_step = ours._env.step

    def step(place: np.ndarray) -> Any:
        given.append(place.tolist())
        return plain_step(place)

    monkeypatch.setattr(ours._env, "step", step)
    for action in ([-1, 0], [1, 0.5], [9, -9]):
        ours.step(np.array(action, np.float32))
    assert given == [[0.0, 256.0], [512.0, 384.0], [512.0, 0.0]]
    with pytest.raises(ValueError, match="not finite"):
        ours.step(np.array([np.nan, 0], np.float32))


def test_the_order_of_the_bars_decides_the_last_bit_of_the_reward() -> None:
    """The negative control of the test below: without an order, the same walk gives other rewards."""
    ours, other = PushTEnvironment(task="pusht_state"), PushTEnvironment(task="pusht_state")
    plain_reset = other._env.reset

    def reset(**options: Any) -> Any:
        result = plain_reset(**options)
        other._env._block_shapes.reverse()
        return result

    other._env.reset = reset
    rewards = [[one.reward for one in walk(each, 3, pushes(100))] for each in (ours, other)]
    assert rewards[0] != rewards[1]
    assert np.allclose(rewards[0], rewards[1], rtol=1e-12)


def test_every_process_plays_the_same_episode() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    command = [sys.executable, "-c", "from test_pusht import digest\nprint(digest())"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == digest()


@pytest.mark.parametrize("task", ["pusht_state", "pusht_pixels"])
def test_an_episode_comes_back_by_replay(task: str) -> None:
    ours, other = PushTEnvironment(task=task), PushTEnvironment(task=task)
    actions = pushes(40)
    seen = walk(ours, 3, actions)
    walk(other, 1, actions[:3])
    assert bits([other.replay(3, actions[:30])]) == bits([seen[30]])
    assert bits([other.step(action) for action in actions[30:]]) == bits(seen[31:])
    assert bits([other.replay(3, actions[:0])]) == bits(seen[:1])


def test_a_time_limit_is_not_terminal_and_brings_the_best_reward() -> None:
    ours = PushTEnvironment(task="pusht_state", episode_steps=50)
    seen = walk(ours, 8, pushes(50, seed=2))
    assert [one.is_last for one in seen] == [False] * 50 + [True]
    assert not seen[-1].is_terminal
    assert all(one.scores == {} for one in seen[:-1])
    assert seen[-1].scores == {"max_reward": max(one.reward for one in seen), "success": 0.0}
    assert task_info("pusht_state").episode_steps == 300


def test_success_is_terminal() -> None:
    ours = PushTEnvironment(task="pusht_state")
    ours.reset(0)
    simulator = ours._env
    simulator.agent.position = (60, 450)
    simulator.block.angle = SOLVED[2]
    simulator.block.position = SOLVED[:2].tolist()
    simulator.space.step(0.01)
    last = ours.step(np.array([-0.77, 0.76], np.float32))
    assert last.is_last
    assert last.is_terminal
    assert last.reward == 1.0
    assert last.scores == {"max_reward": 1.0, "success": 1.0}
    ours.reset(0)
    again = ours.step(np.zeros(2, np.float32))
    assert not again.is_last
    assert ours._best < 1.0


def test_spaces_and_tasks() -> None:
    small = PushTEnvironment(task="pusht_pixels", size=64)
    assert small.spaces.obs["image"] == Space(shape=(64, 64, 3), dtype="uint8")
    assert small.reset(0).obs["image"].shape == (64, 64, 3)
    assert small.spaces.action == Space(shape=(2,), dtype="float32")
    assert [task_info(task).problem for task in task_names()] == [None, None]
    kept = small.reset(0).obs["agent"]
    copy = kept.copy()
    small.step(np.ones(2, np.float32))
    assert np.array_equal(kept, copy)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"task": "pusht_pixel"}, "did you mean pusht_pixels"),
        ({"task": "pusht_state", "size": 0}, "`size` must be at least 1"),
        ({"task": "pusht_state", "episode_steps": 0}, "`episode_steps` must be at least 1"),
    ],
)
def test_wrong_arguments_end_in_one_sentence(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        PushTEnvironment(**arguments)


def test_without_its_package_the_suite_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gym_pusht.envs.pusht", None)
    problem = task_info("pusht_state").problem
    assert problem is not None
    assert problem.endswith("run pip install 'reverie[pusht]'.")
    assert "pusht_state" in task_names()
