"""Suite "procgen": the 16 games of the Procgen benchmark through EnvPool, such as ``procgen_coinrun``."""

from __future__ import annotations

from typing import Literal

import numpy as np

from reverie.environments.base import TaskInfo
from reverie.environments.envpool_package import made_pool
from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.parallel.next_step_pool import NextStepPool
from reverie.environments.suites import observation_words, space_words
from reverie.environments.task_lines import require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, require

DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]

_MODES: dict[str, tuple[str, ...]] = {
    "bigfish": (),
    "bossfight": (),
    "caveflyer": ("memory", "exploration"),
    "chaser": ("extreme",),
    "climber": ("exploration",),
    "coinrun": ("exploration",),
    "dodgeball": ("extreme", "memory"),
    "fruitbot": (),
    "heist": ("memory", "exploration"),
    "jumper": ("memory", "exploration"),
    "leaper": ("extreme", "exploration"),
    "maze": ("memory", "exploration"),
    "miner": ("memory",),
    "ninja": ("exploration",),
    "plunder": (),
    "starpilot": ("extreme",),
}
"""The games, and which distributions of levels each has beside "easy" and "hard"."""


class ProcgenBatch(BatchSimulator):
    """N copies of one game, 64x64 pixels in colour, 15 actions.

    ``num_levels`` 0 plays all levels; else levels ``start_level`` to ``start_level + num_levels - 1``, to measure
    generalisation. The game's own time limit is a time limit and not an end.
    """

    def __init__(
        self,
        *,
        task: str,
        num_envs: int,
        seed: int,
        distribution_mode: DistributionMode = "hard",
        num_levels: int = 0,
        start_level: int = 0,
        num_threads: int = 0,
    ) -> None:
        require_task(task, task_names())
        game = task.removeprefix("procgen_")
        modes = ("easy", "hard", *_MODES[game])
        if distribution_mode not in modes:
            raise ReverieError(
                f"`environment.simulator.distribution_mode` of {task} must be one of {', '.join(modes)}, "
                f"got {distribution_mode}."
            )
        require("environment.simulator.num_levels", num_levels, at_least=0)
        require("environment.simulator.start_level", start_level, at_least=0)
        native = made_pool(
            f"{game.capitalize()}{distribution_mode.capitalize()}-v0",
            task=task,
            extra="procgen",
            num_envs=num_envs,
            seed=seed,
            num_threads=num_threads,
            num_levels=num_levels,
            start_level=start_level,
            channel_first=False,
        )
        self.task, self.num_envs, self.frames_per_step = task, num_envs, 1
        self.episode_steps: int = native.spec.config.max_episode_steps
        image = Space(shape=native.observation_space.shape, dtype="uint8")
        action = Space(shape=(), dtype="int64", classes=int(native.action_space.n))
        self.spaces = Spaces(obs={"image": image}, action=action)
        self._pool = NextStepPool(native, np.array)

    def reset(self) -> BatchTimestep:
        return self._pool.reset()

    def step(self, action: np.ndarray) -> BatchTimestep:
        if action.min() < 0 or action.max() >= self.spaces.action.dim:
            raise ValueError(f"an action is outside 0 to {self.spaces.action.dim - 1}")
        return self._pool.step(action.astype(np.int32))

    def close(self) -> None:
        self._pool.close()


def task_names() -> list[str]:
    return [f"procgen_{game}" for game in _MODES]


def task_info(task: str) -> TaskInfo:
    try:
        batch = ProcgenBatch(task=task, num_envs=1, seed=0)
    except ReverieError as error:
        return unavailable(task, error)
    try:
        return TaskInfo(
            name=task,
            observation=observation_words(batch.spaces),
            action=space_words(batch.spaces.action),
            episode_steps=batch.episode_steps,
            frames_per_step=batch.frames_per_step,
        )
    finally:
        batch.close()


def example_task() -> str:
    return "procgen_coinrun"
