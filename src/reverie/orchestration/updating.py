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
        if self.batch is None or self.buffer is None:
            with self.measuring("update"):
                return self.hook(phase=self.phase).metrics
        with self.measuring("replay"):
            length, crosses = self.batch.length + self.context_rows, self.batch.crosses_episodes
            batch = self.buffer.sample(self.batch.size, length, sampler=self.batch.sampler, crosses_episodes=crosses)
        with self.measuring("update"):
            result = self.hook(batch, phase=self.phase)
        if result.write_back is not None:
            with self.measuring("replay"):
                self.buffer.write_back(batch.index, result.write_back)
        if "prioritized" in self.batch.samplers:
            assert result.priorities is not None, "checked before the first step: this workflow gives priorities"
            with self.measuring("replay"):
                self.buffer.prioritize(batch.index, result.priorities, crosses_episodes=crosses)
        self.last_batch = batch
        return result.metrics
