"""Where N simulators leave what they show: one array per part of a timestep, with a leading axis N."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reverie.types import ReverieError, Spaces, Timestep

_FLAGS = ("is_first", "is_last", "is_terminal")
_TRUE = b"\1"
_ALIGNMENT = 64


class Board:
    """The current timestep of every environment, and the actions that lead to the next one.

    It lies in memory that has a descriptor but no name: worker processes map it, and nothing remains of it when the
    processes are gone, however they ended.
    """

    def __init__(self, spaces: Spaces, *, num_envs: int, memory: int) -> None:
        """``memory`` is the descriptor of an empty file of `shared_memory`."""
        self._layout: dict[str, tuple[str, tuple[int, ...], int]] = {}
        size = 0
        for name, (dtype, shape) in _parts(spaces).items():
            self._layout[name] = (dtype, shape, size)
            size += -(-num_envs * _row_bytes(dtype, shape) // _ALIGNMENT) * _ALIGNMENT
        self._size = size
        _reserve(memory, size)
        buffer = mmap.mmap(memory, size)
        arrays = {
            name: np.frombuffer(buffer, dtype, num_envs * int(np.prod(shape, dtype=np.int64)), start).reshape(
                num_envs, *shape
            )
            for name, (dtype, shape, start) in self._layout.items()
        }
        self.obs: dict[str, np.ndarray] = {key: arrays[f"obs/{key}"] for key in spaces.obs}
        self._checked = [(key, self.obs[key], space.shape, self.obs[key].dtype) for key, space in spaces.obs.items()]
        self.reward: np.ndarray = arrays["reward"]
        self.is_first: np.ndarray = arrays["is_first"]
        self.is_last: np.ndarray = arrays["is_last"]
        self.is_terminal: np.ndarray = arrays["is_terminal"]
        self.is_busy: np.ndarray = arrays["is_busy"]
        """Which simulators their workers are at work with: also what a worker leaves here when it dies."""
        self.action: np.ndarray = arrays["action"]
        start, end = (self._layout[name][2] for name in ("is_first", "is_busy"))
        self._flags = np.frombuffer(buffer, np.uint8, end - start, start)

    @property
    def has_flags(self) -> bool:
        """Whether any environment shows the first or the last observation of an episode."""
        return _TRUE in self._flags.tobytes()

    def layout(self, index: int) -> dict[str, Any]:
        """Where the rows of one environment lie, in words that pass through JSON."""
        rows = {
            name: (dtype, shape, start + index * _row_bytes(dtype, shape))
            for name, (dtype, shape, start) in self._layout.items()
        }
        return {"size": self._size, "rows": rows}

    def write(self, index: int, timestep: Timestep) -> None:
        for key, rows, shape, dtype in self._checked:
            value = timestep.obs[key]
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(
                    f"the observation {key} is {value.dtype} of shape {value.shape}, not {dtype} of shape {shape}"
                )
            rows[index] = value
        self.reward[index] = timestep.reward
        self.is_first[index] = timestep.is_first
        self.is_last[index] = timestep.is_last
        self.is_terminal[index] = timestep.is_terminal

    def read(self, index: int, scores: Mapping[str, float]) -> Timestep:
        """A copy of what one environment shows."""
        return Timestep(
            obs={key: np.array(row[index]) for key, row in self.obs.items()},
            reward=float(self.reward[index]),
            is_first=bool(self.is_first[index]),
            is_last=bool(self.is_last[index]),
            is_terminal=bool(self.is_terminal[index]),
            scores=scores,
        )


def shared_memory() -> Any:
    """An empty file without a name, in memory where the system offers that."""
    folder = Path("/dev/shm")
    return tempfile.TemporaryFile(dir=folder if os.access(folder, os.W_OK) else None)


def _reserve(memory: int, size: int) -> None:
    """Claim the memory now: where it is not there, writing to it later would end the process without a word."""
    os.ftruncate(memory, size)
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(memory, 0, size)
        except OSError as error:
            raise ReverieError(
                f"The shared memory of the system has no room for {size / 2**20:.0f} MiB of observations "
                f"({error.strerror}): use fewer environments or give it more (docker run --shm-size)."
            ) from error


def _parts(spaces: Spaces) -> dict[str, tuple[str, tuple[int, ...]]]:
    obs = {f"obs/{key}": (str(space.dtype), space.shape) for key, space in spaces.obs.items()}
    flags = dict.fromkeys((*_FLAGS, "is_busy"), ("bool", ()))
    return {**obs, "reward": ("float64", ()), **flags, "action": (str(spaces.action.dtype), spaces.action.shape)}


def _row_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    return int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
