"""Suite "procgen": the 16 games of the Procgen benchmark through EnvPool, such as ``procgen_coinrun``."""

from __future__ import annotations

from typing import Literal

import numpy as np

from reverie.environments.actions import class_indices
from reverie.environments.base import TaskInfo
from reverie.environments.envpool_package import made_pool
from reverie.environments.isolated.procgen import GAMES, MODES
from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.parallel.next_step_pool import NextStepPool
from reverie.environments.suites import observation_words, space_words
from reverie.environments.task_lines import require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, require, require_choice

DistributionMode = Literal["easy", "hard", "extreme", "memory", "exploration"]


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
        modes = [mode for mode, games in MODES.items() if game in games]
        require_choice("environment.simulator.distribution_mode", distribution_mode, modes)
        require("environment.simulator.num_levels", num_levels, at_least=0)
        require("environment.simulator.start_level", start_level, at_least=0)
        if num_levels == 0 and start_level > 0:
            raise ReverieError("`start_level` does nothing while num_levels is 0 (all levels): set num_levels too.")
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
        return self._pool.step(class_indices(action, self.spaces.action.dim).astype(np.int32))

    def close(self) -> None:
        self._pool.close()


def task_names() -> list[str]:
    return [f"procgen_{game}" for game in GAMES]


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
