"""One updating hook of a phase as a function without arguments: sample, compute, write back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from reverie.buffers.base import Buffer
from reverie.orchestration.phases import BatchSpec
from reverie.types import Batch, Metrics, Phase
from reverie.workflows.base import UpdateResult


@dataclass(kw_only=True, slots=True)
class Update:
    """What a call reads and writes stays at its address, so that a CUDA graph can hold the whole call."""

    hook: Callable[..., UpdateResult]
    phase: Phase
    batch: BatchSpec | None
    buffer: Buffer | None
    context_rows: int
    measuring: Callable[[str], AbstractContextManager[Any]]
    """Counts time as ``replay`` or ``update``."""
    last_batch: Batch | None = field(init=False, default=None)

    def __call__(self) -> Metrics:
        if self.batch is None:
            with self.measuring("update"):
                return self.hook(phase=self.phase).metrics
        batch = self.drawn()
        with self.measuring("update"):
            result = self.hook(batch, phase=self.phase)
        self.keep(batch, result)
        return result.metrics

    def drawn(self) -> Batch:
        """The first part of a call that has a batch."""
        assert self.batch is not None
        assert self.buffer is not None, "the parser lets no batch through without a buffer"
        with self.measuring("replay"):
            return self.buffer.sample(
                self.batch.size,
                self.batch.length + self.context_rows,
                sampler=self.batch.sampler,
                crosses_episodes=self.batch.crosses_episodes,
            )

    def keep(self, batch: Batch, result: UpdateResult) -> None:
        """The last part: what the buffer gets back."""
        assert self.batch is not None
        assert self.buffer is not None
        self.last_batch = batch
        with self.measuring("replay"):
            if result.write_back is not None:
                self.buffer.write_back(batch.index, result.write_back)
            if "prioritized" in self.batch.samplers:
                assert result.priorities is not None, "checked before the first step: this workflow gives priorities"
                crosses = self.batch.crosses_episodes
                self.buffer.prioritize(batch.index, result.priorities, crosses_episodes=crosses)


class FedUpdate:
    """An update whose batches come from the host: only its hook is recorded, on a batch that stays where it is."""

    def __init__(self, update: Update, record: Callable[[Callable[[], Metrics]], Callable[[], Metrics]]) -> None:
        self._update = update
        self._learn = record(self._learned)
        self._batch: Batch | None = None
        self._result: UpdateResult | None = None

    def __call__(self) -> Metrics:
        batch = self._update.drawn()
        with self._update.measuring("update"):
            if self._batch is None:
                self._batch = batch
            else:
                copy_into(self._batch, batch)
            metrics = self._learn()
        assert self._result is not None
        self._update.keep(self._batch, self._result)
        return metrics

    def _learned(self) -> Metrics:
        self._result = self._update.hook(self._batch, phase=self._update.phase)
        return self._result.metrics


def copy_into(batch: Batch, other: Batch) -> None:
    """Give ``batch`` the values of ``other`` where its tensors are."""
    for name in ("reward", "is_first", "is_last", "is_terminal", "action"):
        getattr(batch, name).copy_(getattr(other, name))
    for kept, new in ((batch.obs, other.obs), (batch.stored, other.stored)):
        for name, value in kept.items():
            value.copy_(new[name])
    if batch.weight is not None and other.weight is not None:
        batch.weight.copy_(other.weight)
    batch.index = other.index
