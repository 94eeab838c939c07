"""One update: sample, call the hook, write back, and let the guard judge."""

from __future__ import annotations

from collections.abc import Callable

from reverie.buffers.base import Buffer
from reverie.orchestration.logger import Counters
from reverie.orchestration.phases import HookSpec
from reverie.orchestration.stopwatch import Stopwatch
from reverie.orchestration.update_guard import UpdateGuard
from reverie.types import Metrics, Phase
from reverie.workflows.base import UpdateResult, WorldModelWorkflow


class Updater:
    def __init__(self, workflow: WorldModelWorkflow, guard: UpdateGuard, stopwatch: Stopwatch) -> None:
        self._workflow, self._guard, self._stopwatch = workflow, guard, stopwatch

    def update(self, hook: HookSpec, buffer: Buffer | None, phase: Phase, counters: Counters) -> Metrics:
        """The metrics of one call of the hook. ``counters`` are those before it."""
        method: Callable[..., UpdateResult] = getattr(self._workflow, hook.name)
        batch = None
        if hook.batch is not None and buffer is not None:
            with self._stopwatch.measuring("replay"):
                length = hook.batch.length + self._workflow.context_rows
                batch = buffer.sample(hook.batch.size, length, sampler=hook.batch.sampler)
        with self._stopwatch.measuring("update"):
            self._guard.prepare(hook.name, phase)
            result = method(phase=phase) if batch is None else method(batch, phase=phase)
        if batch is not None and buffer is not None and result.write_back is not None:
            with self._stopwatch.measuring("replay"):
                buffer.write_back(batch.index, result.write_back)
        with self._stopwatch.measuring("update"):
            self._guard.judge(hook.name, batch, result, counters)
        return result.metrics
