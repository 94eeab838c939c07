"""Suite "builtin": five small tasks in numpy, one for each thing that an agent must be able to do.

They need no other package, take microseconds per step, and each has a best return that is known exactly.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.builtin_games import Board, Corridor, Doors, Game, Reach, Recall
from reverie.environments.task_lines import described, require_task
from reverie.types import Spaces, State, Timestep, require

_GAMES: Mapping[str, type[Game]] = {
    "builtin_discrete": Corridor,
    "builtin_continuous": Reach,
    "builtin_image": Board,
    "builtin_memory": Recall,
    "builtin_explore": Doors,
}

BEST_RETURN: Mapping[str, float] = {task: game.best_return for task, game in _GAMES.items()}
"""The return of the best policy, which every episode of it reaches."""


class BuiltinEnvironment(Environment):
    """One of the games of `builtin_games.py`, whose docstrings state their rules. ``size`` is for images alone."""

    resume: Resume = "state"
    frames_per_step = 1

    def __init__(self, *, task: str, size: int = 64) -> None:
        require_task(task, task_names())
        require("size", size, at_least=16)
        self.task = task
        self._game = Board(size=size) if task == "builtin_image" else _GAMES[task]()
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
        self._check(action)
        reward, is_terminal = self._game.play(action)
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

    def _check(self, action: np.ndarray) -> None:
        space = self._game.action
        if space.classes is None:
            if not np.isfinite(action).all():
                raise ValueError(f"the action {action} is not finite")
        elif not 0 <= int(action) < space.dim:
            raise ValueError(f"the action {int(action)} is outside 0 to {space.dim - 1}")


def task_names() -> list[str]:
    return list(_GAMES)


def task_info(task: str) -> TaskInfo:
    environment = BuiltinEnvironment(task=task)
    return described(environment, episode_steps=environment.episode_steps)
