"""How Gymnasium's observation spaces become ours, and how observations pass over."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from reverie.types import ReverieError, Space

_MIN_FLOAT_IMAGE_SIDE = 8
_CHANNELS = (1, 3, 4)

Path = tuple[str | int, ...]
"""Names and indices that lead to an entry of an observation."""


class ObsReader:
    """Turns one native observation, whatever its nesting, into arrays by key.

    A single space gets the key of its kind: "vector", "image" or "discrete". The entries of a Dict keep their names,
    those of a Tuple are "0", "1" and so on; names of nested entries are joined with "/".
    """

    def __init__(self, native: object, task: str) -> None:
        self._task = task
        self._entries: dict[str, tuple[Path, _Leaf]] = {}
        for path, space in leaves(native, task):
            leaf = _Leaf(space, f"{task} at '{joined(path)}'" if path else task)
            key = joined(path) or leaf.kind
            if key in self._entries:
                raise ReverieError(f"{task} has two observations that are both called '{key}': rename one of them.")
            self._entries[key] = (path, leaf)
        if not self._entries:
            raise _unsupported(native, task)

    @property
    def spaces(self) -> dict[str, Space]:
        return {key: leaf.space for key, (_, leaf) in self._entries.items()}

    def values(self, native: Any) -> dict[str, np.ndarray]:
        """Fresh arrays: simulators may reuse those they return."""
        return {key: leaf.value(self._entry(native, path)) for key, (path, leaf) in self._entries.items()}

    def _entry(self, native: Any, path: Path) -> Any:
        for name in path:
            try:
                native = native[name]
            except (KeyError, IndexError, TypeError) as error:
                raise interface_error(self._task, f"its observations must have the entry '{joined(path)}'") from error
        return native


@dataclass(frozen=True, slots=True)
class _Layout:
    """How a native array becomes an image: its axes in a new order, its shape afterwards, its values in bytes."""

    axes: tuple[int, ...]
    shape: tuple[int, int, int]
    scale: float | None
    """What turns the native floats into 0 to 255; None where the native values are bytes already."""


class _Leaf:
    """Turns one native array into an array of its space."""

    def __init__(self, native: gym_spaces.Space[Any], task: str) -> None:
        self._task = task
        self._shape: tuple[int, ...] = native.shape or ()
        self._layout = _image_layout(native) if isinstance(native, gym_spaces.Box) else None
        self._start: int | np.ndarray = 0
        self._num: int | np.ndarray = 0
        if isinstance(native, gym_spaces.Box):
            image = self._layout.shape if self._layout else None
            self.space = Space(shape=image or (int(np.prod(native.shape)),), dtype="uint8" if image else "float32")
        else:
            self.space, self._start = class_space(native, task)
            self._num = np.array(self.space.classes)
        self._flat_shape = self.space.shape
        # Chosen once: small simulators take less time for a step than a few questions here would.
        self._converted = self._classes if self.space.is_discrete else self._image if self._layout else self._vector

    @property
    def kind(self) -> str:
        if self.space.is_discrete:
            return "discrete"
        return "image" if self.space.is_image else "vector"

    def value(self, native: Any) -> np.ndarray:
        raw = np.asarray(native)
        if raw.shape != self._shape:
            raise interface_error(self._task, f"its observation has shape {raw.shape} instead of {self._shape}")
        return self._converted(raw)

    def _vector(self, raw: np.ndarray) -> np.ndarray:
        return np.array(raw, dtype=np.float32).reshape(self._flat_shape)

    def _classes(self, raw: np.ndarray) -> np.ndarray:
        index = np.array(raw, dtype=np.int64).reshape(self.space.shape) - self._start
        if raw.dtype.kind not in "iub" or not ((index >= 0) & (index < self._num)).all():
            raise interface_error(self._task, f"its observation {raw.tolist()} is not in its own space")
        return index

    def _image(self, raw: np.ndarray) -> np.ndarray:
        layout = self._layout
        assert layout is not None
        if layout.scale is None:
            if raw.dtype != np.uint8:
                raise interface_error(self._task, f"its image has dtype {raw.dtype} instead of uint8")
            return np.array(raw.transpose(layout.axes), order="C").reshape(layout.shape)
        scaled = np.asarray(raw.transpose(layout.axes), dtype=np.float32) * layout.scale
        # Half a level of room for rounding. The comparison is written so that NaN fails it.
        if not (scaled.min() >= -0.5 and scaled.max() <= 255.5):
            raise interface_error(self._task, "its image has values outside the bounds of its space")
        return np.clip(np.rint(scaled), 0, 255).astype(np.uint8, order="C").reshape(layout.shape)


def class_space(native: object, task: str) -> tuple[Space, Any]:
    """Our space of a Discrete, MultiDiscrete or MultiBinary, and the native value that is our 0."""
    if isinstance(native, gym_spaces.Discrete):
        return Space(shape=(), dtype="int64", classes=int(native.n)), int(native.start)
    if isinstance(native, gym_spaces.MultiDiscrete):
        classes = tuple(int(num) for num in native.nvec.flatten())
        return Space(shape=(len(classes),), dtype="int64", classes=classes), native.start.flatten().astype(np.int64)
    if isinstance(native, gym_spaces.MultiBinary):
        length = int(np.prod(native.shape))
        return Space(shape=(length,), dtype="int64", classes=(2,) * length), 0
    raise _unsupported(native, task)


def interface_error(task: str, detail: str) -> ReverieError:
    """The error of an environment that breaks Gymnasium's own rules."""
    return ReverieError(f"{task} does not follow Gymnasium's interface: {detail}; mend the environment or wrap it.")


def leaves(native: object, task: str, path: Path = ()) -> Iterator[tuple[Path, gym_spaces.Space[Any]]]:
    """Every space that holds values itself, with the way to it through the Dicts and Tuples around it."""
    if isinstance(native, gym_spaces.Dict):
        if not all(isinstance(name, str) and name for name in native.spaces):
            raise _unsupported(native, task)
        for name, space in native.spaces.items():
            yield from leaves(space, task, (*path, name))
    elif isinstance(native, gym_spaces.Tuple):
        for index, space in enumerate(native.spaces):
            yield from leaves(space, task, (*path, index))
    elif isinstance(native, gym_spaces.Space):
        yield path, native
    else:
        raise _unsupported(native, task)


def joined(path: Path) -> str:
    """Our key for an entry, or nothing for a single space."""
    return "/".join(str(name) for name in path)


def _unsupported(native: object, task: str) -> ReverieError:
    return ReverieError(
        f"{task} has an observation space that is not supported ({native}): wrap it so that it gives a Box, Discrete, "
        "MultiDiscrete or MultiBinary, or a Dict or Tuple of these with named entries."
    )


def _image_layout(native: gym_spaces.Box) -> _Layout | None:
    """How a Box is read as an image; None where it is a vector."""
    shape = native.shape
    if native.dtype == np.uint8 and len(shape) == 4:  # a stack of images: its frames become channels
        return _Layout((1, 2, 0, 3), (shape[1], shape[2], shape[0] * shape[3]), None)
    if native.dtype == np.uint8 and len(shape) == 2:
        return _Layout((0, 1), (*shape, 1), None)
    if len(shape) != 3:
        return None
    # Channels are fewer than pixels in a row or column: a smallest first axis is the channels.
    axes = (1, 2, 0) if shape[0] < min(shape[1:]) else (0, 1, 2)
    height, width, channels = (shape[axis] for axis in axes)
    if native.dtype == np.uint8:
        return _Layout(axes, (height, width, channels), None)
    is_float_image = (
        np.issubdtype(native.dtype, np.floating)
        and channels in _CHANNELS
        and min(height, width) >= _MIN_FLOAT_IMAGE_SIDE
        and not native.low.any()
    )
    for top in (1.0, 255.0):
        if is_float_image and (native.high == top).all():
            return _Layout(axes, (height, width, channels), 255.0 / top)
    return None
