"""The suite memorymaze, against memory_maze itself. A reset takes seconds, so each test plays few steps."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest

from reverie.environments.memorymaze import MemoryMazeEnvironment, task_info, task_names
from reverie.types import ReverieError, Timestep

ACTIONS = np.array([1, 4, 1, 5, 2, 1, 1, 3], dtype=np.int64)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture
def maze() -> Iterator[MemoryMazeEnvironment]:
    env = MemoryMazeEnvironment(task="memorymaze_9x9")
    yield env
    env.close()
    env.close()


def is_same(one: Timestep, other: Timestep) -> bool:
    flags = [(each.reward, each.is_first, each.is_last, each.is_terminal) for each in (one, other)]
    return (
        flags[0] == flags[1]
        and one.obs.keys() == other.obs.keys()
        and all(np.array_equal(value, other.obs[key]) for key, value in one.obs.items())
    )


def test_a_seed_gives_the_maze_of_the_package_and_a_replay_its_last_row(maze: MemoryMazeEnvironment) -> None:
    import memory_maze.tasks as tasks

    native: Any = tasks.memory_maze_9x9(seed=5, image_only_obs=True)
    shown, seen = native.reset(), maze.reset(5)
    assert (seen.reward, seen.is_first) == (0.0, True)
    for action in ACTIONS:
        assert np.array_equal(seen.obs["image"], shown.observation)
        shown, seen = native.step(int(action)), maze.step(action)
        assert (seen.reward, seen.is_first, seen.is_last) == (shown.reward, False, False)
    native.close()
    draws = maze._env.physics.render
    assert is_same(maze.replay(5, ACTIONS), seen)  # after other episodes in the same object
    assert maze._env.physics.render.__func__ is draws.__func__
    assert not is_same(maze.replay(6, ACTIONS), seen)


def test_a_replay_draws_the_first_image_and_the_last(
    maze: MemoryMazeEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dm_control.mujoco import engine

    drawn = []
    render = engine.Camera.render
    monkeypatch.setattr(engine.Camera, "render", lambda *args, **options: drawn.append(1) or render(*args, **options))
    maze.reset(5)
    at_reset = len(drawn)
    maze.replay(5, ACTIONS)
    assert len(drawn) == 2 * at_reset + 1


def test_positions_are_given_where_asked_for() -> None:
    env = MemoryMazeEnvironment(task="memorymaze_11x11", positions=True)
    timestep = env.reset(2)
    assert {key: (value.shape, str(value.dtype)) for key, value in timestep.obs.items()} == {
        key: (space.shape, space.dtype) for key, space in env.spaces.obs.items()
    }
    targets, agent = timestep.obs["targets_pos"].reshape(4, 2), timestep.obs["agent_pos"]
    open_cells = timestep.obs["layout"].reshape(11, 11)
    for x, y in [agent, *targets]:
        assert open_cells[int(y), int(x)] == 1.0
    assert set(np.unique(open_cells)) == {0.0, 1.0}
    env.close()


@pytest.mark.parametrize(("task", "steps"), [("9x9", 1000), ("11x11", 2000), ("13x13", 3000), ("15x15", 4000)])
def test_the_time_limit_is_the_published_one_and_not_terminal(task: str, steps: int) -> None:
    name = f"memorymaze_{task}"
    assert task_info(name).episode_steps == steps
    assert name in task_names()
    env = MemoryMazeEnvironment(task=name)
    env.reset(3)
    inner = env._env.env
    while not hasattr(inner, "_time_limit"):
        inner = inner.env
    # The clock is put forward to the last step but one: an episode takes a minute.
    inner._physics.data.time = (steps - 2) * inner.control_timestep()
    assert not env.step(np.array(0)).is_last
    last = env.step(np.array(0))
    assert (last.is_last, last.is_terminal) == (True, False)
    env.close()


def test_the_import_leaves_no_trace(maze: MemoryMazeEnvironment, caplog: pytest.LogCaptureFixture) -> None:
    assert not any(name.startswith("MemoryMaze") for name in gymnasium.registry)
    assert sys.modules.get("gym") is not gymnasium
    with caplog.at_level(logging.WARNING):
        maze.reset(1)
    assert not caplog.records


def test_what_cannot_be_made_is_refused(maze: MemoryMazeEnvironment) -> None:
    with pytest.raises(ReverieError, match=r"^There is no task memorymaze_9x8: did you mean memorymaze_9x9\?$"):
        MemoryMazeEnvironment(task="memorymaze_9x8")
    with pytest.raises(ValueError, match="the action 6 is outside 0 to 5"):
        maze.step(np.array(6))
