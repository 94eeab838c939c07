"""Vector environments with Gymnasium's interface that reset in the step after the last one, told as batch timesteps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reverie.environments.parallel.batch_simulator import BatchTimestep


class NextStepPool:
    """``pool`` must reset an environment in the step that follows its last one, and ignore its action there.

    ``image`` turns the pool's observation [N, ...] into a fresh array of images [N, height, width, channels].
    """

    def __init__(self, pool: Any, image: Callable[[np.ndarray], np.ndarray]) -> None:
        self._pool = pool
        self._image = image
        self._is_last = np.zeros(0, bool)

    def reset(self, **arguments: Any) -> BatchTimestep:
        obs, _ = self._pool.reset(**arguments)
        self._is_last = np.zeros(len(obs), bool)
        return BatchTimestep(
            obs={"image": self._image(obs)},
            reward=np.zeros(len(obs), np.float32),
            is_first=np.ones(len(obs), bool),
            is_last=self._is_last.copy(),
            is_terminal=np.zeros(len(obs), bool),
        )

    def step(self, action: np.ndarray) -> BatchTimestep:
        obs, reward, terminated, truncated, _ = self._pool.step(action)
        is_first, self._is_last = self._is_last, terminated | truncated
        return BatchTimestep(
            obs={"image": self._image(obs)},
            reward=reward.astype(np.float32),
            is_first=is_first,
            is_last=self._is_last.copy(),
            is_terminal=np.array(terminated),
        )

    def close(self) -> None:
        self._pool.close()
