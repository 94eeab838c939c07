"""How the fields of a row lie in memory: bytes, a large field in an array of its own, all small ones side by side.

A batch is then a few long copies instead of one short copy per field.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

RECORD = "record"
"""The array that holds the small fields."""
WORD_BYTES = 8
"""Rows are whole words in every array: any field can be seen in its own type, and a GPU moves a word at a time."""
_LARGE_BYTES = 1024
"""Of one field in one row: from here on it gets its own array, and comes out of a draw without another copy."""

Packed = dict[str, Tensor]
"""Arrays of bytes by name: [..., bytes of a row]."""


class Layout:
    def __init__(self, example: Mapping[str, Tensor]) -> None:
        """``example`` has one value of every field for each stream: [N, ...]."""
        self._forms = {name: (value.dtype, tuple(value.shape[1:])) for name, value in example.items()}
        self.names = self._forms.keys()
        widths = {name: value[0].nbytes for name, value in example.items()}
        self.large = {name for name, width in widths.items() if width >= _LARGE_BYTES}
        self._places = {name: (name, slice(0, widths[name])) for name in self.large}
        end = 0
        # Widest elements first: then every field begins at a multiple of its element size.
        for name in sorted(widths.keys() - self.large, key=lambda name: (-example[name].element_size(), name)):
            start, end = end, end + widths[name]
            self._places[name] = (RECORD, slice(start, end))
        needed = {name: widths[name] for name in sorted(self.large)} | ({RECORD: end} if end else {})
        self.widths = {name: -(-width // WORD_BYTES) * WORD_BYTES for name, width in needed.items()}
        """Bytes of a row in each array."""

    def place(self, name: str) -> tuple[str, slice]:
        """In which array the field lies, and which of its bytes."""
        return self._places[name]

    def views(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The fields of ``packed`` where they lie: [..., *shape of the field]."""
        return {name: self._view(name, packed) for name in self._forms}

    def fields(self, packed: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The fields of ``packed``: small ones are copies without gaps, large ones views."""
        views = self.views(packed)
        return {name: view if name in self.large else view.contiguous() for name, view in views.items()}

    def _view(self, name: str, packed: Mapping[str, Tensor]) -> Tensor:
        dtype, shape = self._forms[name]
        array, part = self._places[name]
        value = packed[array][..., part]
        return value.view(dtype).view(*value.shape[:-1], *shape)
