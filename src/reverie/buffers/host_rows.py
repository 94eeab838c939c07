"""A ring of rows in the memory of the host, or in a file that is mapped into it: a window is a few long copies.

numpy copies them: a slice costs it a fifth of what torch takes, and memory from it lies on huge pages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from reverie.buffers.layout import Layout, Packed
from reverie.buffers.ring_rows import RingRows
from reverie.types import RowIndex

Allocate: TypeAlias = "Callable[[str, tuple[int, ...]], Tensor]"
"""Zeroed bytes of a shape, for the array of that name."""


def in_memory(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.zeros(shape, dtype=np.uint8))


class HostRows(RingRows):
    def __init__(
        self,
        layout: Layout,
        *,
        num_streams: int,
        stream_length: int,
        pins_batches: bool = False,
        allocate: Allocate = in_memory,
    ) -> None:
        """``pins_batches``: they go to a GPU, which reads pinned memory by itself."""
        self._layout, self._pins_batches = layout, pins_batches
        arrays = {name: allocate(name, (num_streams, stream_length, width)) for name, width in layout.widths.items()}
        super().__init__(layout.views(arrays))
        self._bytes = {name: array.numpy() for name, array in arrays.items()}

    def taken(self, index: RowIndex) -> dict[str, Tensor]:
        """A copy of the rows at ``index``: [B, T, ...]."""
        windows = windows_of(index)
        if windows is None:
            stream, slot = index.stream.unsqueeze(1), index.row % self._stream_length
            return {name: field[stream, slot] for name, field in self._fields.items()}
        packed = empty_windows(self._layout, *index.row.shape, is_pinned=self._pins_batches)
        arrays = {name: value.numpy() for name, value in packed.items()}
        for number, (stream, first) in enumerate(windows):
            self.copy_window(stream, first, {name: array[number] for name, array in arrays.items()})
        return self._layout.fields(packed)

    def copy_window(self, stream: int, first: int, into: Mapping[str, np.ndarray]) -> None:
        """Fill ``into`` [rows, bytes] with as many rows of one stream from number ``first`` on."""
        for name, window in into.items():
            source, done = self._bytes[name][stream], 0
            for slots in self._pieces(first, first + len(window)):
                size = slots.stop - slots.start
                window[done : done + size] = source[slots]
                done += size


def windows_of(index: RowIndex) -> list[tuple[int, int]] | None:
    """(stream, first row) of each window, or None where rows are not consecutive."""
    if not bool((index.row.diff(dim=1) == 1).all()):
        return None
    return list(zip(index.stream.tolist(), index.row[:, 0].tolist(), strict=True))


def empty_windows(layout: Layout, size: int, length: int, *, is_pinned: bool) -> Packed:
    """Room for a batch. Small fields are copied once more on the host, so only the large ones are pinned."""
    found: Packed = {}
    for name, width in layout.widths.items():
        shape = (size, length, width)
        if is_pinned and name in layout.large:
            found[name] = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        else:
            found[name] = torch.from_numpy(np.empty(shape, dtype=np.uint8))
    return found
