"""A ring of rows in the memory of a GPU: one block of bytes per row number, with the streams of a field side by side.

So a row is appended as one piece of memory, and windows are gathered where a CUDA graph can hold it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from reverie.buffers.ring_rows import RingRows
from reverie.runtime.determinism import unordered
from reverie.types import RowIndex

_WORD = torch.int64
_WORD_BYTES = 8


class DeviceRows(RingRows):
    def __init__(self, example: Mapping[str, Tensor], *, stream_length: int, device: torch.device) -> None:
        """``example`` has one value of every field for each stream: [N, ...]."""
        widths = {name: value[0].nbytes for name, value in example.items()}
        # Whole words first, then the widest elements: so every field begins at a multiple of what it is made of.
        self._order = sorted(example, key=lambda name: (widths[name] % _WORD_BYTES != 0, -example[name].element_size()))
        sizes = [example[name].nbytes for name in self._order]
        sizes.append(-sum(sizes) % _WORD_BYTES)  # unused
        self._blocks = torch.zeros(stream_length, sum(sizes), dtype=torch.uint8, device=device)
        parts = dict(zip(self._order, self._blocks.split_with_sizes(sizes, 1), strict=False))
        super().__init__({name: _seen_as(parts[name], value.dtype, value.shape) for name, value in example.items()})
        self._words = {
            name: _seen_as(parts[name], _WORD, (len(value), widths[name] // _WORD_BYTES))
            for name, value in example.items()
            if widths[name] % _WORD_BYTES == 0
        }
        """Fields as whole words: a thread of the device moves one element, so it should be a long one."""
        self._next = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        parts = zip(self._next.split(sizes), self._order, strict=False)
        self.waiting = [part.view(_as_bytes(torch.empty_like(example[name])).shape) for part, name in parts]
        """Where the bytes of the next row are put, field by field, until ``settle``."""

    def as_bytes(self, fields: Mapping[str, Tensor]) -> list[Tensor]:
        """The values of one row number [N, ...] in the order and form of ``waiting``."""
        found = []
        for name in self._order:
            value, kept = fields[name], self._fields[name]
            if value.dtype != kept.dtype or value.device != kept.device:
                value = value.to(kept)
            found.append(_as_bytes(value))
        return found

    def settle(self, position: Tensor) -> None:
        """Make the row that waits row number ``position`` of every stream."""
        if self.names:  # a policy may store nothing
            with unordered():  # one slot has nothing to be ordered
                slot = (position % self._stream_length).view(1)
                self._blocks.view(_WORD).index_copy_(0, slot, self._next.view(1, -1).view(_WORD))

    def taken(self, index: RowIndex) -> dict[str, Tensor]:
        """A copy of the rows at ``index``: [B, T, ...]."""
        stream, slot = index.stream.unsqueeze(1), index.row % self._stream_length
        found = {}
        for name, field in self._fields.items():
            if name in self._words:
                words = self._words[name][stream, slot]
                found[name] = words.view(field.dtype).view(*words.shape[:2], *field.shape[2:])
            else:
                found[name] = field[stream, slot]
        return found

    def replace(self, index: RowIndex, fields: Mapping[str, Tensor]) -> None:
        """Write fields of the rows at ``index``, all of which are held."""
        stream, slot = index.stream.unsqueeze(1), index.row % self._stream_length
        for name, value in fields.items():
            field = self._fields[name]
            if name in self._words:
                elements = math.prod(field.shape[2:])
                words = value.to(field).reshape(*value.shape[:2], elements).view(_WORD)
                self._words[name][stream, slot] = words
            else:
                field[stream, slot] = value.to(field)


def _as_bytes(value: Tensor) -> Tensor:
    """With the last axis longer by the size of an element. No more operations than that takes: hosts are slow."""
    if value.stride(-1) != 1 or not value.is_contiguous():
        value = torch.empty(value.shape, dtype=value.dtype, device=value.device).copy_(value)
    return value.view(torch.uint8)


def _seen_as(part: Tensor, dtype: torch.dtype, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Bytes [stream length, bytes of all streams] as values of one row number [N, ...]: [N, stream length, ...]."""
    return part.view(dtype).view(len(part), *shape).transpose(0, 1)
