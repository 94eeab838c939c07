"""A ring of rows in the memory of a device: windows are gathered there, and a CUDA graph can hold all of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reverie.buffers.layout import Layout, Packed
from reverie.types import RowIndex


class DeviceRows:
    """``stream_length`` rows of ``num_streams`` streams. Row numbers count from the first that ever came."""

    def __init__(self, layout: Layout, *, num_streams: int, stream_length: int, device: torch.device) -> None:
        self.layout, self._stream_length, self._device = layout, stream_length, device
        self._words = {
            name: torch.zeros(num_streams, stream_length, -(-width // 8), dtype=torch.int64, device=device)
            for name, width in layout.widths.items()
        }
        """Rows as whole words: a thread of the device moves one element, so it should be a long one."""
        self._arrays = {
            name: words.view(torch.uint8)[..., : layout.widths[name]] for name, words in self._words.items()
        }

    def put(self, row: int, packed: Packed) -> None:
        """Row number ``row`` of every stream: [N, bytes]."""
        slot = row % self._stream_length
        for name, value in packed.items():
            self._arrays[name].select(1, slot).copy_(value)

    def put_span(self, first: int, packed: Packed) -> None:
        """Rows from number ``first`` on of every stream: [N, rows, bytes]."""
        for name, value in packed.items():
            self._arrays[name][:, self._slots(first, first + value.shape[1])] = value

    def span(self, first: int, stop: int) -> Packed:
        """A copy of the rows from number ``first`` to the one before ``stop``."""
        return {name: array[:, self._slots(first, stop)] for name, array in self._arrays.items()}

    def taken(self, index: RowIndex) -> Packed:
        """A copy of the rows at ``index``: [B, T, bytes]."""
        stream, slot = index.stream.unsqueeze(1), index.row % self._stream_length
        widths = self.layout.widths
        return {name: words[stream, slot].view(torch.uint8)[..., : widths[name]] for name, words in self._words.items()}

    def replace(self, index: RowIndex, fields: Mapping[str, Tensor], *, oldest: int) -> None:
        """Write fields of the rows at ``index``, all of which are still held: none is older than ``oldest``."""
        stream, slot = index.stream.unsqueeze(1), index.row % self._stream_length
        for name, value in fields.items():
            array, part = self.layout.place(name)
            packed = self.layout.bytes_of(name, value, device=self._device)
            if name in self.layout.large and packed.shape[-1] % 8 == 0:
                self._words[array][stream, slot] = packed.view(torch.int64)
            else:
                self._arrays[array][..., part][stream, slot] = packed

    def held(self, count: int) -> Packed:
        """All rows slot by slot when ``count`` of each stream have come: not a copy."""
        return {name: array[:, :count] for name, array in self._arrays.items()}

    def column(self, name: str, first: int, stop: int) -> Tensor:
        """One field of the rows from number ``first`` to the one before ``stop``: [N, rows, ...]."""
        array, part = self.layout.place(name)
        return self.layout.field(name, self._arrays[array][..., part][:, self._slots(first, stop)])

    def fill(self, fields: Mapping[str, Tensor]) -> None:
        """Write fields of all rows slot by slot, as ``held`` gives them."""
        for name, value in fields.items():
            array, part = self.layout.place(name)
            packed = self.layout.bytes_of(name, value, device=self._device)
            self._arrays[array][:, : packed.shape[1], part] = packed

    def _slots(self, first: int, stop: int) -> Tensor:
        return torch.arange(first, stop, device=self._device) % self._stream_length
