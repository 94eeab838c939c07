"""Replay of sequences: one ring of rows per environment, windows that may cross episode borders.

Written by hand because sampling inside a CUDA graph and exact resume exist in no library.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from reverie.buffers.base import Sampler
from reverie.buffers.device_append import DeviceAppend
from reverie.buffers.device_rows import DeviceRows
from reverie.buffers.disk_rows import DiskRows, WriteChunk
from reverie.buffers.flat_rows import batch_of, flat
from reverie.buffers.host_rows import Allocate, HostRows, in_memory
from reverie.buffers.layout import Layout
from reverie.buffers.scratch_files import ScratchFiles
from reverie.buffers.selection import SAMPLERS, Selection
from reverie.types import Batch, ReverieError, Row, RowIndex, State

CHUNK_ROWS = 1024
"""Rows in one write-once chunk, over all streams."""


class WorldModelSequenceBuffer:
    """All streams grow together, one row each per ``append``. Row numbers count appends since the beginning.

    Samplers: ``uniform`` draws from every possible start; ``fresh_first`` first hands out, once each, the
    non-overlapping windows that were completed since the last sample, and fills up with uniform ones; ``recent`` draws
    a window with a chance that falls as 1 / age; ``prioritized`` in proportion to priority ** ``priority_exponent``,
    which weights of odds ** -``importance_exponent`` make up for where that is not 0; ``sweep`` hands out the windows
    that stand side by side, one after the other, and then begins again.

    Rows and draws are on the device of ``rng``, or, with ``device`` disk, in files that are mapped into memory: then
    ``keep_in`` must say where before the first row comes.
    """

    samplers: ClassVar[tuple[str, ...]] = SAMPLERS
    is_on_device = True

    def __init__(
        self,
        *,
        capacity: int,
        num_streams: int,
        rng: Generator,
        device: str = "auto",
        pins_batches: bool = False,
        priority_exponent: float = 0.8,
        importance_exponent: float = 0.0,
    ) -> None:
        """``pins_batches``: they are copied to a GPU, which reads pinned memory by itself."""
        if capacity < num_streams:
            raise ReverieError(
                f"a buffer's capacity ({capacity}) must be at least the number of environments ({num_streams})."
            )
        self.stream_length = capacity // num_streams
        self._num_streams = num_streams
        self._rng = rng
        self._is_on_disk = device == "disk"
        self._pins_batches = pins_batches
        self._chunk_length = min(max(1, CHUNK_ROWS // num_streams), self.stream_length)
        self._rows: DeviceRows | HostRows | DiskRows | None = None
        """Immutable once written, by flat name (`obs/vector`, `reward`, ...). Made when the first row comes."""
        self._stored: DeviceRows | HostRows | None = None
        """Mutable side arrays: what the policy stored, refreshed by ``write_back``."""
        self._append: DeviceAppend | None = None
        self._place: tuple[Path, WriteChunk] | None = None
        self._count = 0
        self._position = torch.zeros((), dtype=torch.int64, device=rng.device)
        """The count again, where windows are drawn: a captured update reads it there."""
        self._counted: dict[int, tuple[int, int]] = {}
        """By length: how many rows had come when windows inside episodes were last counted, and how many there were."""
        self._selection = Selection(
            num_streams=num_streams,
            stream_length=self.stream_length,
            exponent=priority_exponent,
            importance_exponent=importance_exponent,
            rng=rng,
        )
        self.has_weights = importance_exponent > 0

    @property
    def capacity(self) -> int:
        return self.stream_length * self._num_streams

    def keep_in(self, folder: Path, write: WriteChunk) -> None:
        """Where a buffer on disk keeps what changes, and who writes its closed chunks."""
        self._place = (folder, write)

    def __len__(self) -> int:
        return min(self._count, self.stream_length) * self._num_streams

    def append(self, row: Row) -> None:
        fields = flat(row)
        rows, stored = self._rows_like(fields), self._stored_like(row.stored)
        if row.stored.keys() != stored.names:
            # Rows without latents, or with others, would be sampled with those of an older lap of the ring.
            raise ReverieError(
                f"this buffer keeps {sorted(stored.names) or 'nothing'} beside each row, but the acting "
                f"controller stores {sorted(row.stored) or 'nothing'}: give the phase a buffer of its own."
            )
        self._selection.append(self._position, row.is_first.to(self._rng.device))
        if isinstance(rows, DeviceRows) and isinstance(stored, DeviceRows):
            self._append = self._append or DeviceAppend((rows, stored), self._position)
            self._append(fields, row.stored)
        else:
            rows.put(self._count, fields)
            stored.put(self._count, row.stored)
            self._position += 1
        self._count += 1

    def can_sample(self, size: int, length: int, *, crosses_episodes: bool = True) -> bool:
        if not self._has_windows(min(self._count, self.stream_length), size, length):
            return False
        return crosses_episodes or self._has_episode_windows(size, length)

    def could_sample(self, size: int, length: int) -> bool:
        return self._has_windows(self.stream_length, size, length)

    def _has_windows(self, held: int, size: int, length: int) -> bool:
        starts = held - length + 1
        return starts > 0 and starts * self._num_streams >= size

    def sample(self, size: int, length: int, *, sampler: Sampler, crosses_episodes: bool = True) -> Batch:
        """Allowed only where ``can_sample`` is true.

        Everything that changes between two calls is a tensor, so that a CUDA graph can hold a call.
        """
        return self.rows_at(self.drawn(size, length, sampler=sampler, crosses_episodes=crosses_episodes))

    def drawn(self, size: int, length: int, *, sampler: Sampler, crosses_episodes: bool = True) -> RowIndex:
        """The first half of ``sample``: which rows."""
        self._prepare_selection(length, crosses_episodes=crosses_episodes)
        return self._selection.drawn(size, length, self._position, sampler=sampler, crosses_episodes=crosses_episodes)

    def rows_at(self, index: RowIndex) -> Batch:
        """The second half of ``sample``: a copy of these rows."""
        assert self._rows is not None
        assert self._stored is not None
        rows = self._rows.taken(index)
        # An episode that a restart abandoned has no last row of its own: the next first row shows where it ended.
        rows["is_last"][:, :-1] |= rows["is_first"][:, 1:]
        return batch_of(rows, self._stored.taken(index), index)

    def prioritize(self, index: RowIndex, priority: Tensor, *, crosses_episodes: bool = True) -> None:
        if self._rng.device.type == "cpu":  # a batch that was drawn ahead may have been overwritten since
            is_held = index.row[:, 0] >= self._oldest
            index, priority = RowIndex(stream=index.stream[is_held], row=index.row[is_held]), priority[is_held]
        if len(index.stream):
            self._selection.assign(index, priority, self._position, crosses_episodes=crosses_episodes)

    def aged(self, stream: Tensor, age: Tensor) -> Batch:
        device = self._rng.device
        return self.rows_at(RowIndex(stream=stream.to(device), row=self._count - 1 - age.to(device)))

    def write_back(self, index: RowIndex, values: dict[str, Tensor]) -> None:
        assert self._stored is not None
        for name, value in values.items():
            last = RowIndex(stream=index.stream, row=index.row[:, -value.shape[1] :])
            if self._rng.device.type == "cpu":  # a batch that was drawn ahead may have been overwritten since
                is_held = last.row >= self._oldest
                stream = last.stream.unsqueeze(1).expand_as(last.row)[is_held]
                last, value = RowIndex(stream=stream, row=last.row[is_held].unsqueeze(1)), value[is_held].unsqueeze(1)
            self._stored.replace(last, {name: value})

    def closed_chunks(self) -> range:
        return range(self._oldest // self._chunk_length, self._count // self._chunk_length)

    def chunk(self, index: int) -> dict[str, Tensor]:
        assert self._rows is not None
        first = max(index * self._chunk_length, self._oldest)
        return self._rows.span(first, (index + 1) * self._chunk_length)

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None:
        rows = self._rows_like({name: value[:, 0] for name, value in arrays.items()})
        if isinstance(rows, DiskRows):
            rows.adopt(index, arrays)
            return
        first = (index + 1) * self._chunk_length - next(iter(arrays.values())).shape[1]
        rows.put_span(first, arrays)

    def get_state(self) -> State:
        """Rows that are in no closed chunk, the side arrays, and where everything stands.

        The side arrays are not copied, because they may fill half of the memory: save them before going on.
        """
        tail_start = max(self._count // self._chunk_length * self._chunk_length, self._oldest)
        rows, stored = self._rows, self._stored
        held = stored.held(self._count) if stored else {}
        return {
            "count": self._count,
            "selection": self._selection.get_state(),
            "tail": rows.span(tail_start, self._count) if rows else {},
            "stored": held,
        }

    def set_state(self, state: State) -> None:
        """Chunks first (``load_chunk``), then this."""
        self._count = state["count"]
        self._position.fill_(self._count)
        self._counted.clear()
        if tail := state["tail"]:
            rows = self._rows_like({name: _one(value) for name, value in tail.items()})
            first = self._count - next(iter(tail.values())).shape[1]
            rows.put_span(first, tail)
            stored = self._stored_like({name: _one(value) for name, value in state["stored"].items()})
            stored.fill(state["stored"])
        self._selection.set_state(state["selection"], position=self._position, **self._held_firsts())

    @property
    def _oldest(self) -> int:
        """The number of the oldest row that is held."""
        return max(0, self._count - self.stream_length)

    def _rows_like(self, example: Mapping[str, Tensor]) -> DeviceRows | HostRows | DiskRows:
        """Room for rows with the fields of ``example`` [N, ...], made when it is first needed."""
        if self._rows is None and self._is_on_disk:
            assert self._place is not None, "keep_in comes before the first row"
            self._rows = DiskRows(
                Layout(example),
                **self._sizes,
                chunk_length=self._chunk_length,
                write=self._place[1],
                pins_batches=self._pins_batches,
            )
        elif self._rows is None:
            self._rows = self._in_memory(example)
        return self._rows

    def _stored_like(self, example: Mapping[str, Tensor]) -> DeviceRows | HostRows:
        if self._stored is None and self._is_on_disk:
            assert self._place is not None, "keep_in comes before the first row"
            self._stored = self._on_host(example, ScratchFiles(self._place[0]).array)
        elif self._stored is None:
            self._stored = self._in_memory(example)
        return self._stored

    def _in_memory(self, example: Mapping[str, Tensor]) -> DeviceRows | HostRows:
        if self._rng.device.type == "cpu":
            return self._on_host(example, in_memory)
        return DeviceRows(example, stream_length=self.stream_length, device=self._rng.device)

    def _on_host(self, example: Mapping[str, Tensor], allocate: Allocate) -> HostRows:
        return HostRows(Layout(example), **self._sizes, pins_batches=self._pins_batches, allocate=allocate)

    @property
    def _sizes(self) -> dict[str, int]:
        return {"num_streams": self._num_streams, "stream_length": self.stream_length}

    def _has_episode_windows(self, size: int, length: int) -> bool:
        """Counted once after each append: the answer makes the device wait, as the next action does anyway."""
        if self._counted.get(length, (-1, 0))[0] != self._count:
            self._prepare_selection(length, crosses_episodes=False)
            count = self._selection.count(length, self._position, crosses_episodes=False)
            self._counted[length] = (self._count, count)
        return self._counted[length][1] >= size

    def _prepare_selection(self, length: int, *, crosses_episodes: bool) -> None:
        if not self._selection.is_prepared(length, crosses_episodes=crosses_episodes):
            self._selection.prepare(length, crosses_episodes=crosses_episodes, **self._held_firsts())

    def _held_firsts(self) -> dict[str, Any]:
        """Which of the rows that are held begin an episode, from the oldest on."""
        if self._rows is None:
            return {"is_first": torch.zeros(self._num_streams, 0, dtype=torch.bool), "oldest": self._oldest}
        return {"is_first": self._rows.column("is_first", self._oldest, self._count), "oldest": self._oldest}


def _one(value: Tensor) -> Tensor:
    """The form of one row of each stream, where there may be none: [N, rows, ...] to [N, ...]."""
    return value.new_empty(value.shape[0], *value.shape[2:])
