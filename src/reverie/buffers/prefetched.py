"""Replay whose rows are not on the device that learns: the next batch is fetched while the present one is learned from.

Which rows come next is drawn directly after the batch before them is handed out, always at the same point of a run, and
only the copying happens in a thread. So the run stays reproducible: a batch is one update old when it is used. What an
update writes back is on its way to the host until the next batch is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from reverie.buffers.base import Sampler
from reverie.buffers.disk_rows import WriteChunk
from reverie.buffers.flat_rows import batch_of, flat
from reverie.buffers.selection import SAMPLERS
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.types import Batch, Row, RowIndex, State


class _Request(NamedTuple):
    size: int
    length: int
    sampler: Sampler
    crosses_episodes: bool


class PrefetchedBuffer:
    """``buffer`` keeps the rows on the host; batches come to ``device``."""

    samplers: ClassVar[tuple[str, ...]] = SAMPLERS
    is_on_device = False

    def __init__(self, buffer: WorldModelSequenceBuffer, *, device: torch.device) -> None:
        self._buffer, self._device = buffer, device
        self.stream_length, self.has_weights = buffer.stream_length, buffer.has_weights
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="replay")
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._ahead: dict[_Request, Future[_Arrived]] = {}
        self._due: list[Callable[[], None]] = []
        """What updates gave back and the rows do not have yet."""
        self._has_priorities = False
        """Whether priorities are among that."""

    @property
    def capacity(self) -> int:
        return self._buffer.capacity

    def keep_in(self, folder: Path, write: WriteChunk) -> None:
        self._buffer.keep_in(folder, write)

    def __len__(self) -> int:
        return len(self._buffer)

    def append(self, row: Row) -> None:
        if self._has_priorities:
            self._settle()  # a new row gets a priority by those that are known
        else:
            self._wait()  # and not for the device: a value for a row that is overwritten now is dropped later on
        self._buffer.append(row)

    def can_sample(self, size: int, length: int, *, crosses_episodes: bool = True) -> bool:
        return self._buffer.can_sample(size, length, crosses_episodes=crosses_episodes)

    def could_sample(self, size: int, length: int) -> bool:
        return self._buffer.could_sample(size, length)

    def sample(self, size: int, length: int, *, sampler: Sampler, crosses_episodes: bool = True) -> Batch:
        """The batch that was drawn at the last such call, or one that is drawn now where there was none."""
        self._settle()
        request = _Request(size, length, sampler, crosses_episodes)
        ahead = self._ahead.pop(request, None) or self._begun(request)
        batch = ahead.result().batch()
        self._ahead[request] = self._begun(request)
        return batch

    def prioritize(self, index: RowIndex, priority: Tensor, *, crosses_episodes: bool = True) -> None:
        arriving = _Arriving({"priority": priority})
        self._has_priorities = True

        def settle() -> None:
            self._buffer.prioritize(index, arriving.values()["priority"], crosses_episodes=crosses_episodes)

        self._due.append(settle)

    def aged(self, stream: Tensor, age: Tensor) -> Batch:
        self._settle()
        return _moved(self._buffer.aged(stream.cpu(), age.cpu()), self._device)

    def write_back(self, index: RowIndex, values: dict[str, Tensor]) -> None:
        arriving = _Arriving(values)
        self._due.append(lambda: self._buffer.write_back(index, arriving.values()))

    def closed_chunks(self) -> range:
        return self._buffer.closed_chunks()

    def chunk(self, index: int) -> dict[str, Tensor]:
        return self._buffer.chunk(index)

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None:
        self._buffer.load_chunk(index, arrays)

    def get_state(self) -> State:
        """With the batches that are fetched already: some of their rows may be overwritten by now."""
        self._settle()
        return {**self._buffer.get_state(), "ahead": [_saved(one, on.result()) for one, on in self._ahead.items()]}

    def set_state(self, state: State) -> None:
        self._wait()
        self._due.clear()
        self._has_priorities = False
        self._ahead.clear()
        self._buffer.set_state(state)
        for saved in state.get("ahead", ()):  # a run that kept its rows on the device has none
            request, batch = _loaded(saved)
            self._ahead[request] = self._thread.submit(_Arrived, batch, self._device, self._stream)

    def _begun(self, request: _Request) -> Future[_Arrived]:
        """Draw now, copy meanwhile."""
        size, length, sampler, crosses = request
        index = self._buffer.drawn(size, length, sampler=sampler, crosses_episodes=crosses)
        return self._thread.submit(lambda: _Arrived(self._buffer.rows_at(index), self._device, self._stream))

    def _wait(self) -> None:
        """Nobody reads rows any more: now they may change."""
        for ahead in self._ahead.values():
            ahead.result()

    def _settle(self) -> None:
        self._wait()
        for settle in self._due:
            settle()
        self._due.clear()
        self._has_priorities = False


class _Arrived:
    """A batch on its way from pinned memory to the device, on a stream of its own. Made in the thread."""

    def __init__(self, batch: Batch, device: torch.device, stream: torch.cuda.Stream | None) -> None:
        self._host = batch  # pinned memory must stay until it is read
        self._moved: torch.cuda.Event | None = None
        if stream is None:
            self._batch = batch
            return
        with torch.cuda.stream(stream):
            self._batch = _moved(batch, device)
            self._moved = torch.cuda.Event()
            self._moved.record()

    def batch(self) -> Batch:
        """What the device queues from now on may use it."""
        if self._moved is not None:
            torch.cuda.current_stream().wait_event(self._moved)
            weights = () if self._batch.weight is None else (self._batch.weight,)
            for value in (*flat(self._batch).values(), *self._batch.stored.values(), *weights):
                value.record_stream(torch.cuda.current_stream())
        return self._batch

    def on_host(self) -> Batch:
        return self._host


class _Arriving:
    """Values on their way from the device to the host."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self._values = {name: value.detach().to("cpu", non_blocking=True, copy=True) for name, value in values.items()}
        self._copied: torch.cuda.Event | None = None
        if any(value.is_cuda for value in values.values()):
            self._copied = torch.cuda.Event()
            self._copied.record()

    def values(self) -> dict[str, Tensor]:
        if self._copied is not None:
            self._copied.synchronize()
        return self._values


def _moved(batch: Batch, device: torch.device) -> Batch:
    """The index stays on the host, where it is needed again."""
    rows = {name: value.to(device, non_blocking=True) for name, value in flat(batch).items()}
    stored = {name: value.to(device, non_blocking=True) for name, value in batch.stored.items()}
    moved = batch_of(rows, stored, batch.index)
    moved.weight = None if batch.weight is None else batch.weight.to(device, non_blocking=True)
    return moved


def _saved(request: _Request, arrived: _Arrived) -> State:
    batch = arrived.on_host()
    sampler = request.sampler if isinstance(request.sampler, str) else [list(one) for one in request.sampler]
    return {
        "request": {**request._asdict(), "sampler": sampler},
        "rows": {name: value.clone() for name, value in flat(batch).items()},
        "stored": {name: value.clone() for name, value in batch.stored.items()},
        "index": {"stream": batch.index.stream, "row": batch.index.row, "weight": batch.index.weight},
    }


def _loaded(state: State) -> tuple[_Request, Batch]:
    request = state["request"]
    given = request["sampler"]
    sampler = given if isinstance(given, str) else tuple((name, fraction) for name, fraction in given)
    return _Request(**{**request, "sampler": sampler}), batch_of(
        state["rows"], state["stored"], RowIndex(**state["index"])
    )
