"""The updating hooks of a phase, each made into a function once, and called with a guard before and after it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from reverie.buffers.base import Buffer
from reverie.orchestration.logger import Counters
from reverie.orchestration.parts import Parts
from reverie.orchestration.phases import HookSpec, PhaseSpec
from reverie.orchestration.stopwatch import Stopwatch
from reverie.orchestration.update_guard import UpdateGuard
from reverie.orchestration.updating import FedUpdate, Update
from reverie.runtime.capture import Captured, is_capturable
from reverie.types import Metrics, Phase


class PhaseUpdates:
    def __init__(self, parts: Parts, guard: UpdateGuard, stopwatch: Stopwatch, *, captures: bool) -> None:
        """``captures`` needs a CUDA device: each update becomes one CUDA graph."""
        self._parts, self._guard, self._stopwatch = parts, guard, stopwatch
        self._captures = captures

    def enter(self, spec: PhaseSpec, phase: Phase, buffer: Buffer | None) -> None:
        """Turn the phase's hooks into functions; ``perform`` only looks them up."""
        self._phase = phase
        hooks = [hook for hook in spec.hooks if hook.kind == "update"]
        self._updates = {hook: self._made(hook, buffer) for hook in hooks}

    def perform(self, hook: HookSpec, counters: Counters) -> Metrics:
        """One update; RunStoppedError when too many were skipped. ``counters`` are those before it."""
        update, function = self._updates[hook]
        self._guard.prepare(hook.name, self._phase)
        self._parts.workflow.acting.before_update()
        with self._stopwatch.measuring("update") if isinstance(function, Captured) else nullcontext():
            metrics = function()
        self._guard.judge(hook.name, update.last_batch, metrics, counters)
        return metrics

    def _made(self, hook: HookSpec, buffer: Buffer | None) -> tuple[Update, Callable[[], Metrics]]:
        """The update, and what is called for it: a recording of it, or the update itself."""
        method = getattr(self._parts.workflow, hook.name)
        is_captured = self._captures and is_capturable(method)
        is_whole = is_captured and (hook.batch is None or buffer is None or buffer.is_on_device)
        update = Update(
            hook=method,
            phase=self._phase,
            batch=hook.batch,
            buffer=buffer,
            context_rows=self._parts.workflow.context_rows,
            measuring=(lambda _: nullcontext()) if is_whole else self._stopwatch.measuring,
        )
        if not is_captured:
            return update, update
        record = partial(Captured, name=hook.name, generators=self._parts.rng.learning_streams)
        return update, record(update) if is_whole else FedUpdate(update, record)
