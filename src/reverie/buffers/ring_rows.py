"""A ring of rows in the memory of a device, or in a file that is mapped into the memory of the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from reverie.buffers.layout import Layout, Packed
from reverie.types import RowIndex

Allocate: TypeAlias = "Callable[[str, tuple[int, ...]], Tensor]"
"""Zeroed bytes of a shape, for the array of that name."""


class RingRows:
    """``stream_length`` rows of ``num_streams`` streams. Row numbers count from the first that ever came."""

    def __init__(
        self,
        layout: Layout,
        *,
        num_streams: int,
        stream_length: int,
        device: torch.device,
        pins_batches: bool = False,
        allocate: Allocate | None = None,
    ) -> None:
        """``pins_batches``: rows are on the host, and batches go to a GPU. ``allocate`` None takes memory."""
        self.layout, self._stream_length, self._device = layout, stream_length, device
        self._pins_batches = pins_batches
        allocate = allocate or (_on_host if device.type == "cpu" else partial(_on_device, device=device))
        self._arrays = {
            name: allocate(name, (num_streams, stream_length, width)) for name, width in layout.widths.items()
        }
        self._fields = layout.views(self._arrays)
        self._host = {name: array.numpy() for name, array in self._arrays.items() if device.type == "cpu"}

    def put(self, row: int, fields: Mapping[str, Tensor]) -> None:
        """Row number ``row`` of every stream: [N, ...]."""
        slot = row % self._stream_length
        for name, value in fields.items():
            self._fields[name].select(1, slot).copy_(value)

    def put_span(self, first: int, fields: Mapping[str, Tensor]) -> None:
        """Rows from number ``first`` on of every stream: [N, rows, ...]."""
        for name, value in fields.items():
            done = 0
            for slots in self._pieces(first, first + value.shape[1]):
                size = slots.stop - slots.start
                self._fields[name][:, slots].copy_(value[:, done : done + size])
                done += size

    def span(self, first: int, stop: int) -> dict[str, Tensor]:
        """A copy of the rows from number ``first`` to the one before ``stop``: [N, rows, ...]."""
        return {name: self.column(name, first, stop) for name in self._fields}

    def column(self, name: str, first: int, stop: int) -> Tensor:
        """A copy of one field of these rows."""
        return torch.cat([self._fields[name][:, slots] for slots in self._pieces(first, stop)], 1)

    def held(self, count: int) -> dict[str, Tensor]:
        """All rows slot by slot when ``count`` of each stream have come: not a copy."""
        return {name: field[:, :count] for name, field in self._fields.items()}

    def fill(self, fields: Mapping[str, Tensor]) -> None:
        """Write all rows slot by slot, as ``held`` gives them."""
        for name, value in fields.items():
            self._fields[name][:, : value.shape[1]].copy_(value)

    def replace(self, index: RowIndex, fields: Mapping[str, Tensor], *, oldest: int) -> None:
        """Write fields of the rows at ``index``; on the host, but for those that are older than ``oldest``."""
        stream, slot = index.stream.unsqueeze(1).expand_as(index.row), index.row % self._stream_length
        if self._device.type == "cpu":  # a batch that was drawn ahead may have been overwritten since
            is_held = index.row >= oldest
            stream, slot = stream[is_held], slot[is_held]
            fields = {name: value[is_held] for name, value in fields.items()}
        for name, value in fields.items():
            field = self._fields[name]
            field[stream, slot] = value.to(field)

    def taken(self, index: RowIndex) -> Packed:
        """A copy of the rows at ``index``: [B, T, bytes]."""
        windows = windows_of(index) if self._host else None
        if windows is None:
            stream, slot = index.stream.unsqueeze(1), index.row % self._stream_length
            words = {name: array.view(torch.int64)[stream, slot] for name, array in self._arrays.items()}
            return {name: value.view(torch.uint8) for name, value in words.items()}
        found = empty_windows(self.layout, *index.row.shape, is_pinned=self._pins_batches)
        arrays = {name: value.numpy() for name, value in found.items()}
        for number, (stream, first) in enumerate(windows):
            self.copy_window(stream, first, {name: array[number] for name, array in arrays.items()})
        return found

    def copy_window(self, stream: int, first: int, into: Mapping[str, np.ndarray]) -> None:
        """Fill ``into`` [rows, bytes] with as many rows of one stream from number ``first`` on, on the host."""
        for name, window in into.items():
            source, done = self._host[name][stream], 0
            for slots in self._pieces(first, first + len(window)):
                size = slots.stop - slots.start
                window[done : done + size] = source[slots]
                done += size

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
    """Room for a batch on the host. A GPU fetches it by itself from pinned memory."""
    shapes = {name: (size, length, width) for name, width in layout.widths.items()}
    if is_pinned:
        return {name: torch.empty(shape, dtype=torch.uint8, pin_memory=True) for name, shape in shapes.items()}
    return {name: torch.from_numpy(np.empty(shape, dtype=np.uint8)) for name, shape in shapes.items()}


def _on_host(name: str, shape: tuple[int, ...]) -> Tensor:
    """From numpy, which asks the system for huge pages: long copies take two thirds of the time."""
    return torch.from_numpy(np.zeros(shape, dtype=np.uint8))


def _on_device(name: str, shape: tuple[int, ...], *, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=torch.uint8, device=device)
