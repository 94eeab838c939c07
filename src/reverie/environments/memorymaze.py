"""Suite "memorymaze": random mazes whose coloured targets must be found again from memory (Pasukonis et al. 2022)."""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.rendering.choice import drawing_package, first_drawing
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep

_EPISODE_STEPS = {
    "memorymaze_9x9": 1000,
    "memorymaze_11x11": 2000,
    "memorymaze_13x13": 3000,
    "memorymaze_15x15": 4000,
}
_SIZE = 64
_ACTIONS = 6
"""Nothing, forward, left, right, forward and left, forward and right."""
_POSITION_KEYS = ("agent_pos", "agent_dir", "targets_pos", "targets_vec", "target_pos", "target_vec")
_GYM_MODULES = ("gym", "gym.envs", "gym.envs.registration")


class MemoryMazeEnvironment(Environment):
    """One maze per seed: the one that ``memory_maze.tasks.memory_maze_9x9(seed=seed)`` begins with.

    The image is the view of the agent, framed in the colour of the target to be found next; each visit pays 1.
    ``positions`` adds where the agent and the targets are, in cells of the maze, and ``layout``, its open cells: what
    a probe of the agent's memory is trained on, and what the agent itself is not meant to see.
    """

    resume: Resume = "replay"
    needs_rendering: ClassVar[bool] = True
    frames_per_step = 1

    def __init__(self, *, task: str, positions: bool = False) -> None:
        require_task(task, task_names())
        self.task, self._has_positions = task, positions
        self.episode_steps = _EPISODE_STEPS[task]
        with _gymnasium_as_gym():
            tasks = drawing_package("memory_maze.tasks", task=task, extra="memorymaze")
        self._make = getattr(tasks, f"memory_maze_{task.removeprefix('memorymaze_')}")
        self._env: Any = None
        size, targets = int(task.rpartition("x")[2]), {1000: 3, 2000: 4, 3000: 5, 4000: 6}[self.episode_steps]
        obs = {"image": Space(shape=(_SIZE, _SIZE, 3), dtype="uint8")}
        if positions:
            shapes = {key: 2 * targets if key.startswith("targets") else 2 for key in _POSITION_KEYS}
            obs |= {key: Space(shape=(shape,), dtype="float32") for key, shape in shapes.items()}
            obs["layout"] = Space(shape=(size * size,), dtype="float32")
        self.spaces = Spaces(obs=obs, action=Space(shape=(), dtype="int64", classes=_ACTIONS))

    def reset(self, seed: int) -> Timestep:
        self.close()
        # Made anew: the generator of the maze goes on from episode to episode and cannot be seeded again.
        with first_drawing(self.task), _quiet():
            self._env = self._make(
                seed=seed, image_only_obs=False, global_observables=self._has_positions, camera_resolution=_SIZE
            )
            native = self._env.reset()
        obs = self._obs(native.observation)
        return Timestep(obs=obs, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        index = int(action)
        if not 0 <= index < _ACTIONS:
            raise ValueError(f"the action {index} is outside 0 to {_ACTIONS - 1}")
        native = self._env.step(index)
        return Timestep(
            obs=self._obs(native.observation),
            reward=float(native.reward),
            is_first=False,
            is_last=native.last(),
            is_terminal=native.last() and native.discount == 0.0,
        )

    def replay(self, seed: int, actions: np.ndarray) -> Timestep:
        """Draws the first image and the last."""
        timestep = self.reset(seed)
        for action in actions[:-1]:
            if timestep.is_last:
                return timestep
            with _unseen(self._env.physics):
                timestep = self.step(np.array(action))
        return timestep if timestep.is_last or len(actions) == 0 else self.step(np.array(actions[-1]))

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _obs(self, native: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        obs = {"image": np.array(native["image"], dtype=np.uint8)}
        if self._has_positions:
            obs |= {key: np.array(native[key], dtype=np.float32).reshape(-1) for key in _POSITION_KEYS}
            obs["layout"] = np.array(native["maze_layout"], dtype=np.float32).reshape(-1)
        return obs


def task_names() -> list[str]:
    """The four sizes."""
    return list(_EPISODE_STEPS)


def task_info(task: str) -> TaskInfo:
    """What the task looks like; finds out whether this machine can draw it."""
    try:
        environment = MemoryMazeEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    return described(environment, episode_steps=environment.episode_steps)


@contextmanager
def _gymnasium_as_gym() -> Iterator[None]:
    """While the package is imported, `gym` is Gymnasium; the ids that the package registers there are taken out again,
    because their environments speak the interface of the old gym."""
    import gymnasium

    before = {name: sys.modules.get(name) for name in _GYM_MODULES}
    known = set(gymnasium.registry)
    for name in _GYM_MODULES:
        sys.modules[name] = importlib.import_module(name.replace("gym", "gymnasium", 1))
    try:
        yield
    finally:
        for name in set(gymnasium.registry) - known:
            del gymnasium.registry[name]
        for name, module in before.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


@contextmanager
def _quiet() -> Iterator[None]:
    """dm_control warns at every reset about a velocity that the agent of this maze does not have."""

    def is_other(record: logging.LogRecord) -> bool:
        return "Cannot set velocity" not in record.getMessage()

    logger = logging.getLogger("absl")
    logger.addFilter(is_other)
    try:
        yield
    finally:
        logger.removeFilter(is_other)


@contextmanager
def _unseen(physics: Any) -> Iterator[None]:
    """Nothing is drawn inside."""

    def nothing(**_: Any) -> np.ndarray:
        return np.zeros((_SIZE, _SIZE, 3), np.uint8)

    physics.render = nothing
    try:
        yield
    finally:
        del physics.render
