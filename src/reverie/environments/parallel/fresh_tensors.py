"""Tensors for what the environments show, made in advance."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

_MAX_COUNT = 64
_MAX_BYTES = 2**16


class FreshTensors:
    """Gives tensors of one shape and dtype; each belongs to whoever gets it and is never given again.

    Small ones are made and let go many at a time: each step of a simulator drives torch out of the processor's caches,
    after which the first tensor takes twenty times as long as one that follows at once.
    """

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        num_bytes = max(1, int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        self._shape, self._dtype = (max(1, min(_MAX_COUNT, _MAX_BYTES // num_bytes)), *shape), dtype
        self._stock: list[tuple[np.ndarray, Tensor]] = []
        self._next = 0

    def filled(self, values: np.ndarray) -> Tensor:
        """A tensor that holds a copy of ``values``."""
        if self._next == len(self._stock):
            self._stock = [(rows, torch.from_numpy(rows)) for rows in np.empty(self._shape, self._dtype)]
            self._next = 0
        rows, tensor = self._stock[self._next]
        self._next += 1
        rows[...] = values
        return tensor
