"""A ring of rows, field by field: what is the same wherever the memory is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reverie.types import RowIndex


class RingRows:
    """Rows of several streams, the same number of each. Row numbers count from the first that ever came."""

    def __init__(self, fields: Mapping[str, Tensor]) -> None:
        """``fields`` are views of the memory: [N, stream length, ...]."""
        self._fields = fields
        self._stream_length = next((field.shape[1] for field in fields.values()), 1)
        self.names = fields.keys()

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

    def replace(self, index: RowIndex, fields: Mapping[str, Tensor]) -> None:
        """Write fields of the rows at ``index``, all of which are held."""
        stream, slot = index.stream.unsqueeze(1), index.row % self._stream_length
        for name, value in fields.items():
            field = self._fields[name]
            field[stream, slot] = value.to(field)

    def _pieces(self, first: int, stop: int) -> list[slice]:
        """The slots of consecutive rows: two slices where the ring ends between them."""
        start = first % self._stream_length
        end = start + stop - first
        if end <= self._stream_length:
            return [slice(start, end)]
        return [slice(start, self._stream_length), slice(0, end - self._stream_length)]
