"""A ring of rows in the memory of a GPU: one block of bytes per row number, with the streams of a field side by side.

So a row is appended by one kernel for all of its fields, and windows are gathered where a CUDA graph can hold it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from reverie.buffers.ring_rows import RingRows
from reverie.types import RowIndex

_WORD = torch.int64
_WORD_BYTES = 8


class DeviceRows(RingRows):
    def __init__(self, example: Mapping[str, Tensor], *, stream_length: int, device: torch.device) -> None:
        """``example`` has one value of every field for each stream: [N, ...]."""
        widths = {name: value[0].nbytes for name, value in example.items()}
        # Whole words first, then the widest elements: so every field begins at a multiple of what it is made of.
        self._order = sorted(example, key=lambda name: (widths[name] % _WORD_BYTES != 0, -example[name].element_size()))
        self._sizes = [example[name].nbytes for name in self._order]
        unused = -sum(self._sizes) % _WORD_BYTES
        self._blocks = torch.zeros(stream_length, sum(self._sizes) + unused, dtype=torch.uint8, device=device)
        self._sizes.append(unused)
        parts = dict(zip(self._order, self._blocks.split_with_sizes(self._sizes, 1), strict=False))
        super().__init__({name: _seen_as(parts[name], value.dtype, value.shape) for name, value in example.items()})
        self._words = {
            name: _seen_as(parts[name], _WORD, (len(value), widths[name] // _WORD_BYTES))
            for name, value in example.items()
            if widths[name] % _WORD_BYTES == 0
        }
        """Fields as whole words: a thread of the device moves one element, so it should be a long one."""

    def put(self, row: int, fields: Mapping[str, Tensor]) -> None:
        """Row number ``row`` of every stream: [N, ...]."""
        values = []
        for name in self._order:
            value, kept = fields[name], self._fields[name]
            if value.dtype != kept.dtype or value.device != kept.device:
                value = value.to(kept)
            values.append(value.reshape(-1).view(torch.uint8))
        if values:  # a policy may store nothing
            places = self._blocks.select(0, row % self._stream_length).split_with_sizes(self._sizes)
            torch.ops.aten._foreach_copy_(places[:-1], values)

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


def _seen_as(part: Tensor, dtype: torch.dtype, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Bytes [stream length, bytes of all streams] as values of one row number [N, ...]: [N, stream length, ...]."""
    return part.view(dtype).view(len(part), *shape).transpose(0, 1)
