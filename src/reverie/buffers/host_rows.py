"""A ring of rows in the memory of the host, or in a file mapped into it: a window is one or two long copies.

numpy instead of torch: a slice costs it a fifth of the time, and a batch has many.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from reverie.buffers.layout import Layout, Packed
from reverie.types import RowIndex

Allocate: TypeAlias = "Callable[[str, tuple[int, ...]], np.ndarray]"
"""Zeroed bytes of a shape, for the array of that name."""

_CPU = torch.device("cpu")


def in_memory(name: str, shape: tuple[int, ...]) -> np.ndarray:
    return np.zeros(shape, dtype=np.uint8)


class HostRows:
    """``stream_length`` rows of ``num_streams`` streams. Row numbers count from the first that ever came."""

    def __init__(
        self,
        layout: Layout,
        *,
        num_streams: int,
        stream_length: int,
        pins_batches: bool = False,
        allocate: Allocate = in_memory,
    ) -> None:
        self.layout, self._stream_length = layout, stream_length
        self._pins_batches = pins_batches
        self._arrays = {
            name: allocate(name, (num_streams, stream_length, width)) for name, width in layout.widths.items()
        }

    def put(self, row: int, packed: Packed) -> None:
        """Row number ``row`` of every stream: [N, bytes]."""
        slot = row % self._stream_length
        for name, value in packed.items():
            self._arrays[name][:, slot] = value.numpy()

    def put_span(self, first: int, packed: Packed) -> None:
        """Rows from number ``first`` on of every stream: [N, rows, bytes]."""
        for name, value in packed.items():
            done = 0
            for slots in self._pieces(first, first + value.shape[1]):
                size = slots.stop - slots.start
                self._arrays[name][:, slots] = value[:, done : done + size].numpy()
                done += size

    def span(self, first: int, stop: int) -> Packed:
        """A copy of the rows from number ``first`` to the one before ``stop``."""
        pieces = self._pieces(first, stop)
        return {
            name: torch.from_numpy(np.concatenate([array[:, slots] for slots in pieces], 1))
            for name, array in self._arrays.items()
        }

    def taken(self, index: RowIndex) -> Packed:
        """A copy of the rows at ``index``: [B, T, bytes]."""
        windows = windows_of(index)
        if windows is None:
            stream, slot = index.stream.numpy()[:, None], index.row.numpy() % self._stream_length
            return {name: torch.from_numpy(array[stream, slot]) for name, array in self._arrays.items()}
        found = empty_windows(self.layout, *index.row.shape, is_pinned=self._pins_batches)
        arrays = {name: value.numpy() for name, value in found.items()}
        for number, (stream, first) in enumerate(windows):
            self.copy_window(stream, first, {name: array[number] for name, array in arrays.items()})
        return found

    def copy_window(self, stream: int, first: int, into: Mapping[str, np.ndarray]) -> None:
        """Fill ``into`` [rows, bytes] with as many rows of one stream from number ``first`` on."""
        for name, window in into.items():
            done = 0
            for slots in self._pieces(first, first + len(window)):
                source = self._arrays[name][stream, slots]
                window[done : done + len(source)] = source
                done += len(source)

    def replace(self, index: RowIndex, fields: Mapping[str, Tensor], *, oldest: int) -> None:
        """Write fields of the rows at ``index``, but for those that are older than ``oldest`` and no longer held."""
        is_held = (index.row >= oldest).numpy()
        stream = np.broadcast_to(index.stream.numpy()[:, None], is_held.shape)[is_held]
        slot = (index.row.numpy() % self._stream_length)[is_held]
        for name, value in fields.items():
            array, part = self.layout.place(name)
            packed = self.layout.bytes_of(name, value, device=_CPU).numpy()
            self._arrays[array][..., part][stream, slot] = packed[is_held]

    def held(self, count: int) -> Packed:
        """All rows slot by slot when ``count`` of each stream have come: not a copy."""
        return {name: torch.from_numpy(array)[:, :count] for name, array in self._arrays.items()}

    def column(self, name: str, first: int, stop: int) -> Tensor:
        """One field of the rows from number ``first`` to the one before ``stop``: [N, rows, ...]."""
        array, part = self.layout.place(name)
        found = [self._arrays[array][:, slots, part] for slots in self._pieces(first, stop)]
        return self.layout.field(name, torch.from_numpy(np.concatenate(found, 1)))

    def fill(self, fields: Mapping[str, Tensor]) -> None:
        """Write fields of all rows slot by slot, as ``held`` gives them."""
        for name, value in fields.items():
            array, part = self.layout.place(name)
            for stream, rows in enumerate(value):  # one by one: all together may be larger than memory
                packed = self.layout.bytes_of(name, rows, device=_CPU).numpy()
                self._arrays[array][stream, : len(packed), part] = packed

    def _pieces(self, first: int, stop: int) -> list[slice]:
        """The slots of consecutive rows: two slices where the ring ends between them."""
        start = first % self._stream_length
        end = start + stop - first
        if end <= self._stream_length:
            return [slice(start, end)]
        return [slice(start, self._stream_length), slice(0, end - self._stream_length)]


def windows_of(index: RowIndex) -> list[tuple[int, int]] | None:
    """(stream, first row) of each window, or None where rows are not consecutive."""
    if not bool((index.row.diff(dim=1) == 1).all()):
        return None
    return list(zip(index.stream.tolist(), index.row[:, 0].tolist(), strict=True))


def empty_windows(layout: Layout, size: int, length: int, *, is_pinned: bool) -> Packed:
    """Room for a batch. From pinned memory a GPU fetches it by itself."""
    return {
        name: torch.empty(size, length, width, dtype=torch.uint8, pin_memory=is_pinned)
        for name, width in layout.widths.items()
    }
