"""Rows of a dataset, for phases that learn without an environment.

All episodes lie one after the other, and windows may cross from one into the next, as they do in replay. Rows never
change, so a checkpoint does not hold them: it holds what was written back, and the checksum of the dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor

from reverie.buffers.base import Sampler
from reverie.buffers.device_rows import DeviceRows
from reverie.buffers.flat_rows import batch_of
from reverie.buffers.host_rows import HostRows
from reverie.buffers.layout import Layout
from reverie.buffers.selection import Selection
from reverie.datasets.dataset import Dataset
from reverie.types import Batch, ReverieError, Row, RowIndex, Spaces, State

_DIGEST_SHOWN = 12


class OfflineBuffer:
    """One stream: the whole dataset in the memory of the device that draws windows from it."""

    samplers: ClassVar[tuple[str, ...]] = ("uniform", "prioritized", "sweep")
    is_on_device = True

    def __init__(
        self,
        *,
        path: str,
        rng: Generator,
        digest: str | None = None,
        priority_exponent: float = 0.8,
        importance_exponent: float = 0.0,
    ) -> None:
        """``digest`` is the checksum that the dataset must have; None takes the dataset as it is."""
        self._dataset = Dataset(Path(path))
        self._rng = rng
        self._check_digest(digest, "this run was started")
        self.stream_length = self._dataset.index.rows
        self._inside: dict[int, int] = {}
        """By length: how many windows lie inside one episode, counted once."""
        self._rows = self._loaded()
        self._stored = self._room({})
        """Mutable side arrays: what a policy would have stored, zeros until it is written back."""
        self._position = torch.full((), self.stream_length, dtype=torch.int64, device=rng.device)
        self._selection = Selection(
            num_streams=1,
            stream_length=self.stream_length,
            exponent=priority_exponent,
            importance_exponent=importance_exponent,
            rng=rng,
        )
        self.has_weights = importance_exponent > 0

    @property
    def capacity(self) -> int:
        return self.stream_length

    @property
    def spaces(self) -> Spaces:
        return self._dataset.index.spaces

    @property
    def digest(self) -> str:
        """The checksum of the dataset."""
        return self._dataset.index.digest

    def __len__(self) -> int:
        return self.stream_length

    def keep(self, stored: Mapping[str, Tensor]) -> None:
        """Give every row what the policy stores beside one, all zeros. ``stored`` has a leading axis of one."""
        self._stored = self._room(stored)

    def append(self, row: Row) -> None:
        raise ReverieError(
            f"the buffer of the dataset {self._dataset.path} takes no rows ({len(row.reward)} were collected): "
            "give the online phase a buffer of its own."
        )

    def can_sample(self, size: int, length: int, *, crosses_episodes: bool = True) -> bool:
        if crosses_episodes or length > self.stream_length:
            return self.could_sample(size, length)
        if length not in self._inside:
            self._prepare_selection(length, crosses_episodes=False)
            self._inside[length] = self._selection.count(length, self._position, crosses_episodes=False)
        return self._inside[length] >= size

    def could_sample(self, size: int, length: int) -> bool:
        return self.stream_length - length + 1 >= size

    def sample(self, size: int, length: int, *, sampler: Sampler, crosses_episodes: bool = True) -> Batch:
        """Allowed only where ``can_sample`` is true. A CUDA graph can hold a call."""
        self._prepare_selection(length, crosses_episodes=crosses_episodes)
        return self._window(
            self._selection.drawn(size, length, self._position, sampler=sampler, crosses_episodes=crosses_episodes)
        )

    def prioritize(self, index: RowIndex, priority: Tensor, *, crosses_episodes: bool = True) -> None:
        self._selection.assign(index, priority, self._position, crosses_episodes=crosses_episodes)

    def aged(self, stream: Tensor, age: Tensor) -> Batch:
        device = self._rng.device
        return self._window(RowIndex(stream=stream.to(device), row=self.stream_length - 1 - age.to(device)))

    def write_back(self, index: RowIndex, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            last = RowIndex(stream=index.stream, row=index.row[:, -value.shape[1] :])
            self._stored.replace(last, {name: value})

    def closed_chunks(self) -> range:
        """None: the rows are in the dataset."""
        return range(0)

    def chunk(self, index: int) -> dict[str, Tensor]:
        raise IndexError(f"the rows of a dataset are in no chunk, so there is none of number {index}")

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None:
        raise ReverieError(
            f"the checkpoint has a replay chunk (number {index}, with {', '.join(sorted(arrays))}) where this run "
            "reads a dataset: use the buffers of the run that wrote it."
        )

    def get_state(self) -> State:
        return {
            "digest": self._dataset.index.digest,
            "selection": self._selection.get_state(),
            "stored": {name: value[0] for name, value in self._stored.held(self.stream_length).items()},
        }

    def set_state(self, state: State) -> None:
        self._check_digest(state["digest"], "the checkpoint was made")
        self._stored.fill({name: value.unsqueeze(0) for name, value in state["stored"].items()})
        self._selection.set_state(state["selection"], position=self._position, **self._firsts())

    def _prepare_selection(self, length: int, *, crosses_episodes: bool) -> None:
        if not self._selection.is_prepared(length, crosses_episodes=crosses_episodes):
            self._selection.prepare(length, crosses_episodes=crosses_episodes, **self._firsts())

    def _firsts(self) -> dict[str, Any]:
        return {"is_first": self._rows.column("is_first", 0, self.stream_length), "oldest": 0}

    def _check_digest(self, expected: str | None, since: str) -> None:
        found = self._dataset.index.digest
        if expected is not None and expected != found:
            raise ReverieError(
                f"the dataset {self._dataset.path} has changed since {since} (checksum {expected[:_DIGEST_SHOWN]}..., "
                f"now {found[:_DIGEST_SHOWN]}...): restore it, or start a new run with it."
            )

    def _loaded(self) -> DeviceRows | HostRows:
        rows, first = None, 0
        for file, arrays in self._dataset.arrays():
            rows = rows or self._room({name: value[:1] for name, value in arrays.items()})
            rows.put_span(first, {name: value.unsqueeze(0) for name, value in arrays.items()})
            first += file.rows
        assert rows is not None, "a dataset has at least one episode"
        return rows

    def _room(self, example: Mapping[str, Tensor]) -> DeviceRows | HostRows:
        """For as many rows as there are, each with the fields of ``example`` [1, ...]."""
        if self._rng.device.type == "cpu":
            return HostRows(Layout(example), num_streams=1, stream_length=self.stream_length)
        return DeviceRows(example, stream_length=self.stream_length, device=self._rng.device)

    def _window(self, index: RowIndex) -> Batch:
        return batch_of(self._rows.taken(index), self._stored.taken(index), index)
