"""Rows in write-once chunk files, mapped into memory: the system keeps what is read often and gives up the rest.

Only the rows of the open chunk take memory of their own. The files are those that checkpoints name, so that a save has
nothing left to write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from reverie.buffers.host_rows import HostRows, empty_windows, windows_of
from reverie.buffers.layout import Layout, Packed
from reverie.runtime.process_memory import return_large_blocks
from reverie.types import RowIndex

WriteChunk: TypeAlias = "Callable[[int, dict[str, Tensor]], dict[str, Tensor]]"
"""Puts the fields of a closed chunk on the disk and gives them back as they lie there."""


class _Chunk:
    """The fields of a mapped chunk [N, rows, ...], and their bytes. One that lost its oldest rows is shorter."""

    def __init__(self, fields: Mapping[str, Tensor]) -> None:
        self.fields = fields
        flat = {name: value.reshape(*value.shape[:2], -1) for name, value in fields.items()}
        self.bytes: dict[str, np.ndarray] = {name: value.view(torch.uint8).numpy() for name, value in flat.items()}


class DiskRows:
    """Rows of ``num_streams`` streams. Row numbers count from the first that ever came."""

    def __init__(
        self,
        layout: Layout,
        *,
        num_streams: int,
        stream_length: int,
        chunk_length: int,
        write: WriteChunk,
        pins_batches: bool = False,
    ) -> None:
        self.names = layout.names
        self._layout, self._num_streams = layout, num_streams
        self._stream_length, self._chunk_length = stream_length, chunk_length
        self._pins_batches = pins_batches
        self._write = write
        self._first_open = 0
        """The number of the first row of the open chunk."""
        self._open = HostRows(layout, num_streams=num_streams, stream_length=chunk_length)
        self._chunks: dict[int, _Chunk] = {}
        return_large_blocks()  # each chunk stays, and the pictures that come and go between two would leave gaps

    def put(self, row: int, fields: Mapping[str, Tensor]) -> None:
        """Row number ``row`` of every stream: [N, ...]."""
        self._open.put(row, fields)
        stop = row + 1
        if stop % self._chunk_length == 0:
            index = row // self._chunk_length
            # Not a copy: freed blocks of this size, with small ones between them, would never go back to the system.
            self.adopt(index, self._write(index, self._open.held(self._chunk_length)))
            oldest = (stop - self._stream_length) // self._chunk_length
            self._chunks = {index: chunk for index, chunk in self._chunks.items() if index >= oldest}

    def adopt(self, index: int, fields: Mapping[str, Tensor]) -> None:
        """A chunk that is on the disk already, and mapped."""
        self._chunks[index] = _Chunk(fields)
        self._first_open = max(self._first_open, (index + 1) * self._chunk_length)

    def put_span(self, first: int, fields: Mapping[str, Tensor]) -> None:
        """Rows of the open chunk, from number ``first`` on: [N, rows, ...]."""
        self._open.put_span(first, fields)

    def span(self, first: int, stop: int) -> dict[str, Tensor]:
        """A copy of the rows from number ``first`` to the one before ``stop``: [N, rows, ...]."""
        if first == stop or first >= self._first_open:
            return self._open.span(first, stop)
        windows = [(stream, first) for stream in range(self._num_streams)]
        return self._layout.fields(self._copied(windows, stop - first))

    def taken(self, index: RowIndex) -> dict[str, Tensor]:
        """A copy of the rows at ``index``: [B, T, ...]."""
        size, length = index.row.shape
        windows = windows_of(index)
        if windows is not None:
            return self._layout.fields(self._copied(windows, length))
        stream = index.stream.unsqueeze(1).expand(size, length).flatten()
        rows = self._copied(list(zip(stream.tolist(), index.row.flatten().tolist(), strict=True)), 1)
        return self._layout.fields({name: value.view(size, length, -1) for name, value in rows.items()})

    def column(self, name: str, first: int, stop: int) -> Tensor:
        """A copy of one field of these rows."""
        found = [self._open.column(name, max(first, self._first_open), stop)]
        for index in sorted(self._chunks, reverse=True):
            rows = self._chunks[index].fields[name]
            found.append(rows[:, max(0, rows.shape[1] - ((index + 1) * self._chunk_length - first)) :])
        return torch.cat(found[::-1], 1)

    def _copied(self, windows: list[tuple[int, int]], length: int) -> Packed:
        """``length`` rows of each (stream, first row)."""
        found = empty_windows(self._layout, len(windows), length, is_pinned=self._pins_batches)
        arrays = {name: value.numpy() for name, value in found.items()}
        for number, (stream, first) in enumerate(windows):
            self._copy_window(stream, first, {name: array[number] for name, array in arrays.items()}, length)
        return found

    def _copy_window(self, stream: int, first: int, into: dict[str, np.ndarray], length: int) -> None:
        done = 0
        while done < length:
            index, offset = divmod(first + done, self._chunk_length)
            chunk = self._chunks.get(index)
            if chunk is None:
                assert first + done >= self._first_open, "a chunk that is held lies on the disk"
                self._open.copy_window(stream, first + done, {name: value[done:] for name, value in into.items()})
                return
            count = min(length - done, self._chunk_length - offset)
            for name, source in chunk.bytes.items():
                array, part = self._layout.place(name)
                start = offset - (self._chunk_length - source.shape[1])
                into[array][done : done + count, part] = source[stream, start : start + count]
            done += count
