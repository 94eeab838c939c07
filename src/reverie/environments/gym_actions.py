"""How Gymnasium's action spaces become ours, and how actions pass over."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from reverie.environments.gym_spaces import class_space
from reverie.types import ReverieError, Space


class ActionWriter:
    """Turns an action of our space into the environment's own.

    Discrete values count from 0. Values for a Box lie in [-1, 1], are clipped there and scaled to the Box's own range.
    """

    def __init__(self, native: object, task: str) -> None:
        self._native = native
        self._start: Any = 0
        if isinstance(native, (gym_spaces.Discrete, gym_spaces.MultiDiscrete, gym_spaces.MultiBinary)):
            self.space, self._start = class_space(native, task)
            self._num = np.array(self.space.classes)
            return
        if not isinstance(native, gym_spaces.Box) or not np.issubdtype(native.dtype, np.floating):
            raise ReverieError(
                f"{task} has an action space that is not supported ({native}): wrap it so that it takes a Discrete, "
                "MultiDiscrete, MultiBinary or a Box of floats."
            )
        if not native.is_bounded("both"):
            raise ReverieError(
                f"{task} has an action space without finite bounds ({native}), so actions in [-1, 1] cannot be scaled "
                "to it: give the space finite bounds."
            )
        self.space = Space(shape=(int(np.prod(native.shape)),), dtype="float32")
        self._low, self._high = native.low.astype(np.float64), native.high.astype(np.float64)

    def native(self, action: np.ndarray) -> Any:
        if self.space.is_discrete:
            return self._classes(action)
        assert isinstance(self._native, gym_spaces.Box)
        wide = action.astype(np.float64)
        if not math.isfinite(wide.sum()):
            raise ValueError(f"the action {action} is not finite")
        # Minimum and maximum, because np.clip takes longer than a step of a small simulator.
        share = (np.minimum(np.maximum(wide, -1.0), 1.0).reshape(self._low.shape) + 1.0) * 0.5
        # Weighting both ends gives the bounds themselves at -1 and 1; the rest removes what rounding may add between.
        scaled = self._low * (1.0 - share) + self._high * share
        return np.minimum(np.maximum(scaled, self._low), self._high).astype(self._native.dtype)

    def _classes(self, action: np.ndarray) -> Any:
        if isinstance(self._native, gym_spaces.Discrete):
            index = int(action)
            if not 0 <= index < self._native.n:
                raise ValueError(f"the action {index} is outside 0 to {self._native.n - 1}")
            return np.int64(index + self._native.start)
        assert isinstance(self._native, (gym_spaces.MultiDiscrete, gym_spaces.MultiBinary))
        if not ((action >= 0) & (action < self._num)).all():
            raise ValueError(f"the action {action.tolist()} is outside its classes {self._num.tolist()}")
        return (action + self._start).astype(self._native.dtype).reshape(self._native.shape)
