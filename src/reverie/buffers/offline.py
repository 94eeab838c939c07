"""Rows of a dataset, for phases that learn without an environment.

All episodes lie one after the other, and windows may cross from one into the next, as they do in replay. Rows never
change, so a checkpoint does not hold them: it holds what was written back, and the checksum of the dataset.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch import Generator, Tensor

from reverie.datasets.dataset import Dataset
from reverie.types import Batch, ReverieError, Row, RowIndex, Spaces, State

_DIGEST_SHOWN = 12


class OfflineBuffer:
    """One stream: the whole dataset in the memory of the device that draws windows from it."""

    samplers: ClassVar[tuple[str, ...]] = ("uniform",)

    def __init__(self, *, path: str, rng: Generator, digest: str | None = None) -> None:
        """``digest`` is the checksum that the dataset must have; None takes the dataset as it is."""
        self._dataset = Dataset(Path(path))
        self._rng = rng
        self._check_digest(digest, "this run was started")
        self.stream_length = self._dataset.index.rows
        self._rows: dict[str, Tensor] = {}
        self._stored: dict[str, Tensor] = {}
        """Mutable side arrays: what a policy would have stored, zeros until it is written back."""
        self._load()

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
        self._stored = {
            name: torch.zeros((self.stream_length, *value.shape[1:]), dtype=value.dtype, device=self._rng.device)
            for name, value in stored.items()
        }

    def append(self, row: Row) -> None:
        raise ReverieError(
            f"the buffer of the dataset {self._dataset.path} takes no rows ({len(row.reward)} were collected): "
            "give the online phase a buffer of its own."
        )

    def can_sample(self, size: int, length: int) -> bool:
        return self.stream_length - length + 1 >= size

    def could_sample(self, size: int, length: int) -> bool:
        return self.can_sample(size, length)

    def sample(self, size: int, length: int, *, sampler: str) -> Batch:
        """``size`` windows of ``length`` rows, each possible start equally likely. A CUDA graph can hold a call."""
        assert sampler in self.samplers, "the phases were checked against the samplers"
        device = self._rng.device
        uniform = torch.rand(size, dtype=torch.float64, device=device, generator=self._rng)
        start = (uniform * (self.stream_length - length + 1)).long()
        return self._window(start.unsqueeze(1) + torch.arange(length, device=device))

    def aged(self, stream: Tensor, age: Tensor) -> Batch:
        del stream  # there is only one
        return self._window(self.stream_length - 1 - age.to(self._rng.device))

    def write_back(self, index: RowIndex, values: dict[str, Tensor]) -> None:
        for name, value in values.items():
            self._stored[name][index.slot[:, -value.shape[1] :]] = value.to(self._stored[name].dtype)

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
            "stored": {name: value.clone() for name, value in self._stored.items()},
        }

    def set_state(self, state: State) -> None:
        self._check_digest(state["digest"], "the checkpoint was made")
        for name, value in state["stored"].items():
            self._stored[name].copy_(value)

    def _check_digest(self, expected: str | None, since: str) -> None:
        found = self._dataset.index.digest
        if expected is not None and expected != found:
            raise ReverieError(
                f"the dataset {self._dataset.path} has changed since {since} (checksum {expected[:_DIGEST_SHOWN]}..., "
                f"now {found[:_DIGEST_SHOWN]}...): restore it, or start a new run with it."
            )

    def _load(self) -> None:
        first = 0
        for file, arrays in self._dataset.arrays():
            for name, value in arrays.items():
                if name not in self._rows:
                    shape = (self.stream_length, *value.shape[1:])
                    self._rows[name] = torch.zeros(shape, dtype=value.dtype, device=self._rng.device)
                self._rows[name][first : first + file.rows] = value.to(self._rng.device)
            first += file.rows

    def _window(self, slot: Tensor) -> Batch:
        rows = {name: value[slot] for name, value in self._rows.items()}
        return Batch(
            obs={name.removeprefix("obs/"): value for name, value in rows.items() if name.startswith("obs/")},
            reward=rows["reward"],
            is_first=rows["is_first"],
            is_last=rows["is_last"],
            is_terminal=rows["is_terminal"],
            action=rows["action"],
            stored={name: value[slot] for name, value in self._stored.items()},
            index=RowIndex(stream=torch.zeros_like(slot[:, 0]), slot=slot),
        )
