"""How the fields of a row lie in memory: bytes, a large field in an array of its own, all small ones side by side.

A batch is then a few long copies instead of one short copy per field.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

RECORD = "record"
"""The array that holds the small fields."""
_LARGE_BYTES = 1024
"""Of one field in one row: from here on it gets its own array, and comes out of a draw without another copy."""

Packed = dict[str, Tensor]
"""Arrays of bytes by name: [..., bytes of a row]."""


class Layout:
    def __init__(self, example: Mapping[str, Tensor]) -> None:
        """``example`` has one value of every field for each stream: [N, ...]."""
        self._forms = {name: (value.dtype, tuple(value.shape[1:])) for name, value in example.items()}
        widths = {name: value[0].nbytes for name, value in example.items()}
        self.large = {name: width for name, width in widths.items() if width >= _LARGE_BYTES}
        """Bytes of each large field."""
        self.places: dict[str, tuple[int, int]] = {}
        """Where in the record each small field begins and ends."""
        end = 0
        # Widest elements first: then every field begins at a multiple of its element size.
        for name in sorted(widths.keys() - self.large.keys(), key=lambda name: (-example[name].element_size(), name)):
            start, end = end, end + widths[name]
            self.places[name] = (start, end)
        self.widths = self.large | ({RECORD: end} if end else {})
        """Bytes of a row in each array."""

    @property
    def names(self) -> list[str]:
        """The fields, in the order in which they were given."""
        return list(self._forms)

    def packed(self, fields: Mapping[str, Tensor], *, device: torch.device) -> Packed:
        """``fields`` with any leading axes as bytes on ``device``."""
        found = {name: self.bytes_of(name, fields[name], device=device) for name in self.large}
        if self.places:
            parts = [self.bytes_of(name, fields[name], device=device) for name in self.places]
            found[RECORD] = parts[0] if len(parts) == 1 else torch.cat(parts, -1)
        return found

    def fields(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The fields of ``packed``: large ones are views, small ones copies without gaps."""
        found = {}
        for name in self._forms:
            array, part = self.place(name)
            found[name] = self.field(name, packed[array][..., part])
        return found

    def place(self, name: str) -> tuple[str, slice]:
        """In which array the field lies, and which of its bytes."""
        return (name, slice(None)) if name in self.large else (RECORD, slice(*self.places[name]))

    def bytes_of(self, name: str, value: Tensor, *, device: torch.device) -> Tensor:
        """One field with any leading axes as bytes on ``device``."""
        dtype, shape = self._forms[name]
        if value.dtype != dtype or value.device != device:  # asking is cheaper than a conversion that does nothing
            value = value.to(device, dtype)
        leading = value.shape[: value.ndim - len(shape)]
        return value.reshape(*leading, math.prod(shape)).view(torch.uint8)

    def field(self, name: str, packed: Tensor) -> Tensor:
        """One field out of its own bytes [..., bytes]: a view of a large one, a copy without gaps of a small one."""
        dtype, shape = self._forms[name]
        leading = packed.shape[:-1]
        if packed.numel() == 0:  # its strides may be anything, and then there is no view
            return packed.new_empty(*leading, *shape, dtype=dtype)
        if name not in self.large:
            # Not contiguous(): an axis of one may keep any stride there, and then there is no view either.
            packed = packed.clone(memory_format=torch.contiguous_format)
        return packed.view(dtype).reshape(*leading, *shape)
