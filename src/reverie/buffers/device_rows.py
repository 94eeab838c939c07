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
        self._is_cuda = device.type == "cuda"
        self._next = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
        forms = [torch.empty(example[name].shape, dtype=example[name].dtype) for name in self._order]
        parts = zip(self._next.split(sizes), forms, strict=False)
        self.waiting = [part.view(form.view(torch.uint8).shape) for part, form in parts]
        """Where the bytes of the next row are put, field by field, until ``settle``."""
        self._expected = [(name, form.dtype, form.stride()) for name, form in zip(self._order, forms, strict=True)]

    def as_bytes(self, fields: Mapping[str, Tensor]) -> list[Tensor]:
        """The values of one row number [N, ...] in the order and form of ``waiting``.

        Asked of each value are only the few things that a view needs: this costs the host more than all kernels do.
        """
        found = []
        for name, dtype, stride in self._expected:
            value = fields[name]
            if value.dtype is not dtype or value.stride() != stride or value.is_cuda is not self._is_cuda:
                value = torch.empty_strided(value.shape, stride, dtype=dtype, device=self._next.device).copy_(value)
            found.append(value.view(torch.uint8))
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


def _seen_as(part: Tensor, dtype: torch.dtype, shape: torch.Size | tuple[int, ...]) -> Tensor:
    """Bytes [stream length, bytes of all streams] as values of one row number [N, ...]: [N, stream length, ...]."""
    return part.view(dtype).view(len(part), *shape).transpose(0, 1)
