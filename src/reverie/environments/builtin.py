"""Suite "builtin": six small tasks in numpy, one for each thing that an agent must be able to do.

They need no other package, take microseconds per step, and each has a best return that is known exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reverie.environments.actions import class_index, clipped
from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.builtin_games import Board, Corridor, Doors, Game, Reach, Recall, Storm
from reverie.environments.task_lines import described, require_task
from reverie.types import Spaces, State, Timestep, require

_GAMES: Mapping[str, type[Game]] = {
    "builtin_discrete": Corridor,
    "builtin_continuous": Reach,
    "builtin_image": Board,
    "builtin_memory": Recall,
    "builtin_explore": Doors,
    "builtin_survival": Storm,
}

BEST_RETURN: Mapping[str, float] = {task: game.best_return for task, game in _GAMES.items()}
"""The return of the best policy, which every episode of it reaches."""


class BuiltinEnvironment(Environment):
    """One of the games of `builtin_games.py`, whose docstrings state their rules.

    ``size`` and ``fields`` are for builtin_image alone, ``delay`` is for builtin_memory.
    """

    resume: Resume = "state"
    frames_per_step = 1

    def __init__(self, *, task: str, size: int = 64, fields: int = 4, delay: int = 4) -> None:
        require_task(task, task_names())
        require("size", size, at_least=16)
        require("fields", fields, at_least=2, at_most=size // 4)
        require("delay", delay, at_least=0)
        self.task = task
        options = {"builtin_image": {"size": size, "fields": fields}, "builtin_memory": {"delay": delay}}
        self._game = _GAMES[task](**options.get(task, {}))
        self._steps = 0
        self.spaces = Spaces(obs=self._game.obs, action=self._game.action)

    @property
    def episode_steps(self) -> int | None:
        return self._game.time_limit

    def reset(self, seed: int) -> Timestep:
        self._game.begin(np.random.default_rng(seed))
        self._steps = 0
        obs = self._game.observation()
        return Timestep(obs=obs, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        space = self._game.action
        checked = clipped(action) if space.classes is None else np.array(class_index(action, space.dim))
        reward, is_terminal = self._game.play(checked)
        self._steps += 1
        return Timestep(
            obs=self._game.observation(),
            reward=reward,
            is_first=False,
            is_last=is_terminal or self._steps == self._game.time_limit,
            is_terminal=is_terminal,
        )

    def close(self) -> None:
        """Nothing is held."""

    def get_state(self) -> State:
        return {"steps": self._steps, "game": self._game.get_state()}

    def set_state(self, state: State) -> None:
        self._steps = int(state["steps"])
        self._game.set_state(state["game"])


def task_names() -> list[str]:
    return list(_GAMES)


def task_info(task: str) -> TaskInfo:
    environment = BuiltinEnvironment(task=task)
    return described(environment, episode_steps=environment.episode_steps)
