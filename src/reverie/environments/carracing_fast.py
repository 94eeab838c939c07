"""CarRacing through EnvPool: several times faster than Gymnasium's, drawn in almost the same way."""

from __future__ import annotations

import numpy as np

from reverie.environments.carracing import pedals, road_image
from reverie.environments.envpool_package import made_pool
from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.parallel.next_step_pool import NextStepPool
from reverie.environments.task_lines import require_task
from reverie.types import Space, Spaces, require


class CarracingBatch(BatchSimulator):
    """``carracing_continuous`` with the options of `CarracingEnvironment`, but without a repeat of actions."""

    def __init__(
        self,
        *,
        task: str,
        num_envs: int,
        seed: int,
        size: int = 64,
        has_dashboard: bool = False,
        episode_frames: int = 1000,
        num_threads: int = 0,
    ) -> None:
        require_task(task, ["carracing_continuous"])
        require("environment.simulator.episode_frames", episode_frames, at_least=1)
        self._image = road_image(size=size, has_dashboard=has_dashboard, task=task)
        native = made_pool(
            "CarRacing-v3",
            task=task,
            extra="procgen",  # it brings EnvPool
            num_envs=num_envs,
            seed=seed,
            num_threads=num_threads,
            max_episode_steps=episode_frames,
        )
        self.task, self.num_envs, self.frames_per_step = task, num_envs, 1
        image = Space(shape=(size, size, 3), dtype="uint8")
        self.spaces = Spaces(obs={"image": image}, action=Space(shape=(3,), dtype="float32"))
        self._pool = NextStepPool(native, self._images)

    def reset(self) -> BatchTimestep:
        return self._pool.reset()

    def step(self, action: np.ndarray) -> BatchTimestep:
        return self._pool.step(pedals(action))

    def close(self) -> None:
        self._pool.close()

    def _images(self, screens: np.ndarray) -> np.ndarray:
        return np.stack([self._image(screen) for screen in screens])
