"""How Gymnasium's spaces become ours, and how values pass between them."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from reverie.types import ReverieError, Space


class ObsReader:
    """Turns one native observation into an array of its space."""

    def __init__(self, native: object, task: str) -> None:
        self._task = task
        self._start = 0
        if isinstance(native, gym_spaces.Discrete):
            self._start = int(native.start)
            self._native_shape: tuple[int, ...] = ()
            self.space = Space(shape=(), dtype="int64", classes=int(native.n))
        elif isinstance(native, gym_spaces.Box):
            self._native_shape = native.shape
            self.space = _box_space(native)
        else:
            raise ReverieError(
                f"{task} has an observation space that is not supported ({native}): "
                "wrap it so that it gives a Box, a Discrete, or a Dict of these."
            )

    @property
    def default_key(self) -> str:
        if self.space.is_discrete:
            return "discrete"
        return "image" if self.space.is_image else "vector"

    def value(self, native: Any) -> np.ndarray:
        """A fresh array: simulators may reuse the one they return."""
        raw = np.asarray(native)
        if raw.shape != self._native_shape:
            raise interface_error(self._task, f"its observation has shape {raw.shape} instead of {self._native_shape}")
        if self.space.is_discrete:
            return np.array(raw - self._start, dtype=np.int64)
        return np.array(raw, dtype=self.space.dtype).reshape(self.space.shape)


class ActionWriter:
    """Turns an action of our space into the environment's own."""

    def __init__(self, native: object, task: str) -> None:
        self._native = native
        if isinstance(native, gym_spaces.Discrete):
            self.space = Space(shape=(), dtype="int64", classes=int(native.n))
            return
        is_float = isinstance(native, gym_spaces.Box) and np.issubdtype(native.dtype, np.floating)
        if not isinstance(native, gym_spaces.Box) or not is_float or len(native.shape) > 1:
            raise ReverieError(
                f"{task} has an action space that is not supported ({native}): "
                "wrap it so that it takes a Discrete or a Box of floats of rank 1."
            )
        if not native.is_bounded("both"):
            raise ReverieError(
                f"{task} has an action space without finite bounds ({native}), so actions in [-1, 1] cannot be scaled "
                "to it: give the space finite bounds."
            )
        self.space = Space(shape=(int(np.prod(native.shape)),), dtype="float32")

    def native(self, action: np.ndarray) -> Any:
        if not isinstance(self._native, gym_spaces.Box):
            return self._discrete(int(action))
        if not np.isfinite(action).all():
            raise ValueError(f"the action {action} is not finite")
        low, high = self._native.low.astype(np.float64), self._native.high.astype(np.float64)
        share = (np.clip(action.astype(np.float64), -1.0, 1.0).reshape(low.shape) + 1.0) / 2.0
        # Weighting both ends gives the bounds themselves at -1 and 1; the clip removes what rounding may add between.
        return np.clip(low * (1.0 - share) + high * share, low, high).astype(self._native.dtype)

    def _discrete(self, index: int) -> np.int64:
        assert isinstance(self._native, gym_spaces.Discrete)
        if not 0 <= index < self._native.n:
            raise ValueError(f"the action {index} is outside 0 to {self._native.n - 1}")
        return np.int64(index + self._native.start)


def _box_space(native: gym_spaces.Box) -> Space:
    is_image = native.dtype == np.uint8 and len(native.shape) == 3
    return Space(
        shape=native.shape if is_image else (int(np.prod(native.shape)),),
        dtype="uint8" if is_image else "float32",
    )


def obs_readers(native: object, task: str) -> dict[str, ObsReader]:
    """One reader per observation key. A space that is not a Dict gets the key of its kind."""
    if not isinstance(native, gym_spaces.Dict):
        reader = ObsReader(native, task)
        return {reader.default_key: reader}
    if not native.spaces or not all(isinstance(key, str) for key in native.spaces):
        raise ReverieError(f"{task} has an observation space that is not supported ({native}): give it named entries.")
    return {key: ObsReader(space, f"{task} at '{key}'") for key, space in native.spaces.items()}


def interface_error(task: str, detail: str) -> ReverieError:
    """The error of an environment that breaks Gymnasium's own rules."""
    return ReverieError(f"{task} does not follow Gymnasium's interface: {detail}; mend the environment or wrap it.")
