"""Replay of sequences: one ring of rows per environment, windows that may cross episode borders.

Written by hand because sampling inside a CUDA graph and exact resume exist in no library.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from reverie.buffers.base import Sampler
from reverie.buffers.flat_rows import batch_of, flat
from reverie.buffers.selection import SAMPLERS, Selection
from reverie.types import Batch, ReverieError, Row, RowIndex, State, require

CHUNK_ROWS = 1024
"""Rows in one write-once chunk, over all streams."""
_SLICED_BYTES = 1024
"""In host memory, windows of rows of at least this size are copied as a whole: one by one they cost ten times more."""


class WorldModelSequenceBuffer:
    """All streams grow together, one row each per ``append``. Row ids count appends since the beginning.

    Samplers: ``uniform`` draws from every possible start; ``fresh_first`` first hands out, once each, the
    non-overlapping windows that were completed since the last sample, and fills up with uniform ones; ``recent`` draws
    a window with a chance that falls as 1 / age; ``prioritized`` in proportion to priority ** ``priority_exponent``.
    """

    samplers: ClassVar[tuple[str, ...]] = SAMPLERS

    def __init__(self, *, capacity: int, num_streams: int, rng: Generator, priority_exponent: float = 0.8) -> None:
        require("priority_exponent of a buffer", priority_exponent, at_least=0)
        if capacity < num_streams:
            raise ReverieError(
                f"a buffer's capacity ({capacity}) must be at least the number of environments ({num_streams})."
            )
        self.stream_length = capacity // num_streams
        self._num_streams = num_streams
        self._rng = rng
        self._chunk_length = min(max(1, CHUNK_ROWS // num_streams), self.stream_length)
        self._rows: dict[str, Tensor] = {}
        """Immutable once written: [streams, length, ...] by flat name (`obs/vector`, `reward`, ...)."""
        self._stored: dict[str, Tensor] = {}
        """Mutable side arrays: what the policy stored, refreshed by ``write_back``."""
        self._count = 0
        self._position = torch.zeros((), dtype=torch.int64, device=rng.device)
        """The count again, where windows are drawn: a captured update reads it there."""
        self._counted: dict[int, tuple[int, int]] = {}
        """By length: how many rows had come when windows inside episodes were last counted, and how many there were."""
        self._selection = Selection(
            num_streams=num_streams, stream_length=self.stream_length, exponent=priority_exponent, rng=rng
        )

    @property
    def capacity(self) -> int:
        return self.stream_length * self._num_streams

    def __len__(self) -> int:
        return min(self._count, self.stream_length) * self._num_streams

    def append(self, row: Row) -> None:
        arrays = flat(row)
        if not self._rows:
            self._rows = {name: self._allocated(value) for name, value in arrays.items()}
            self._stored = {name: self._allocated(value) for name, value in row.stored.items()}
        if row.stored.keys() != self._stored.keys():
            # Rows without latents, or with others, would be sampled with those of an older lap of the ring.
            raise ReverieError(
                f"this buffer keeps {sorted(self._stored) or 'nothing'} beside each row, but the acting controller "
                f"stores {sorted(row.stored) or 'nothing'}: give the phase a buffer of its own."
            )
        slot = self._count % self.stream_length
        for name, value in arrays.items():
            self._rows[name][:, slot] = value
        for name, value in row.stored.items():
            self._stored[name][:, slot] = value
        self._selection.append(self._position, self._rows["is_first"][:, slot])
        self._count += 1
        self._position.fill_(self._count)

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
        self._prepare_selection(length, crosses_episodes=crosses_episodes)
        stream, start = self._selection.drawn(
            size, length, self._position, sampler=sampler, crosses_episodes=crosses_episodes
        )
        slot = (start.unsqueeze(1) + torch.arange(length, device=start.device)) % self.stream_length
        return self._window(RowIndex(stream=stream, slot=slot), is_consecutive=True)

    def prioritize(self, index: RowIndex, priority: Tensor, *, crosses_episodes: bool = True) -> None:
        self._selection.assign(index, priority, crosses_episodes=crosses_episodes)

    def aged(self, stream: Tensor, age: Tensor) -> Batch:
        device = self._rng.device
        slot = (self._count - 1 - age.to(device)) % self.stream_length
        return self._window(RowIndex(stream=stream.to(device), slot=slot))

    def write_back(self, index: RowIndex, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            slot = index.slot[:, -value.shape[1] :]
            self._stored[name][index.stream.unsqueeze(1), slot] = value.to(self._stored[name].dtype)

    def closed_chunks(self) -> range:
        oldest = max(0, self._count - self.stream_length)
        return range(oldest // self._chunk_length, self._count // self._chunk_length)

    def chunk(self, index: int) -> dict[str, Tensor]:
        return self._span(*self._chunk_span(index))

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None:
        first = (index + 1) * self._chunk_length - next(iter(arrays.values())).shape[1]
        self._write_span(first, arrays)

    def get_state(self) -> State:
        """Rows that are in no closed chunk, the side arrays, and where everything stands."""
        tail_start = max(self._count // self._chunk_length * self._chunk_length, self._count - self.stream_length, 0)
        return {
            "count": self._count,
            "selection": self._selection.get_state(),
            "tail": self._span(tail_start, self._count) if self._rows else {},
            "stored": {name: value[:, : self._count].clone() for name, value in self._stored.items()},
        }

    def set_state(self, state: State) -> None:
        """Chunks first (``load_chunk``), then this."""
        self._count = state["count"]
        self._position.fill_(self._count)
        self._counted.clear()
        if state["tail"]:
            tail_length = next(iter(state["tail"].values())).shape[1]
            self._write_span(self._count - tail_length, state["tail"])
        for name, value in state["stored"].items():
            if name not in self._stored:
                self._stored[name] = self._allocated(value[:, 0])
            self._stored[name][:, : value.shape[1]].copy_(value)
        self._selection.set_state(state["selection"], position=self._position, **self._held_firsts())

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
        oldest = max(0, self._count - self.stream_length)
        if not self._rows:
            return {"is_first": torch.zeros(self._num_streams, 0, dtype=torch.bool), "oldest": oldest}
        return {"is_first": self._rows["is_first"][:, self._slots(oldest, self._count)], "oldest": oldest}

    def _window(self, index: RowIndex, *, is_consecutive: bool = False) -> Batch:
        rows = {name: self._taken(value, index, is_consecutive) for name, value in self._rows.items()}
        # An episode that a restart abandoned has no last row of its own: the next first row shows where it ended.
        rows["is_last"][:, :-1] |= rows["is_first"][:, 1:]
        stored = {name: self._taken(value, index, is_consecutive) for name, value in self._stored.items()}
        return batch_of(rows, stored, index)

    def _taken(self, array: Tensor, index: RowIndex, is_consecutive: bool) -> Tensor:
        """A copy of the rows of ``array`` [streams, length, ...] at ``index``."""
        is_large = array.stride(1) * array.element_size() >= _SLICED_BYTES
        if not (is_large and is_consecutive and array.device.type == "cpu"):
            return array[index.stream.unsqueeze(1), index.slot]
        size, length = index.slot.shape
        taken = array.new_empty(size, length, *array.shape[2:])
        for window, stream, start in zip(taken, index.stream.tolist(), index.slot[:, 0].tolist(), strict=True):
            before_wrap = min(length, self.stream_length - start)
            window[:before_wrap] = array[stream, start : start + before_wrap]
            if before_wrap < length:
                window[before_wrap:] = array[stream, : length - before_wrap]
        return taken

    def _allocated(self, value: Tensor) -> Tensor:
        shape = (self._num_streams, self.stream_length, *value.shape[1:])
        return torch.zeros(shape, dtype=value.dtype, device=self._rng.device)

    def _chunk_span(self, index: int) -> tuple[int, int]:
        oldest = max(0, self._count - self.stream_length)
        return max(index * self._chunk_length, oldest), (index + 1) * self._chunk_length

    def _slots(self, first: int, stop: int) -> Tensor:
        return torch.arange(first, stop, device=self._rng.device) % self.stream_length

    def _span(self, first: int, stop: int) -> dict[str, Tensor]:
        slots = self._slots(first, stop)
        return {name: value[:, slots] for name, value in self._rows.items()}

    def _write_span(self, first: int, arrays: dict[str, Tensor]) -> None:
        for name, value in arrays.items():
            if name not in self._rows:
                self._rows[name] = self._allocated(value[:, 0])
            self._rows[name][:, self._slots(first, first + value.shape[1])] = value.to(self._rng.device)
