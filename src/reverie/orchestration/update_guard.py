"""Counts the updates that were skipped, and stops a run with a black box when too many come in a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.orchestration.black_box import BlackBox, batch_state, origin
from reverie.orchestration.command_name import reverie_command
from reverie.orchestration.logger import Counters
from reverie.runtime.durable_files import reason
from reverie.runtime.finite import skipped_flag
from reverie.runtime.rng import RandomStreams
from reverie.types import Batch, Metrics, Phase, RunStoppedError, State
from reverie.workflows.base import WorldModelWorkflow

RECENT_UPDATES = 20
"""Updates whose metrics a black box holds."""


class UpdateGuard:
    """Around every update: ``prepare`` before it and ``judge`` after it. Counts for each hook by itself.

    The counting happens on the device. On a CPU the host looks at once; elsewhere it looks at the count of the update
    before, which has arrived by then, so that it never waits for the update in flight.
    """

    def __init__(
        self,
        workflow: WorldModelWorkflow,
        rng: RandomStreams,
        *,
        device: torch.device,
        limit: int,
        black_box: BlackBox,
        say: Callable[[str], None],
    ) -> None:
        """The run stops when ``limit`` updates of one hook in a row were skipped."""
        self._workflow, self._rng = workflow, rng
        self._device = device
        self._limit = limit
        self._black_box = black_box
        self._say = say
        self._lag = 0 if device.type == "cpu" else 1
        self._total = torch.zeros((), dtype=torch.int64, device=device)
        self._in_a_row: dict[str, Tensor] = {}
        self._known: dict[str, int] = {}
        """The last counts that reached the host."""
        self._judged: deque[_Judged] = deque()
        self._recent: deque[tuple[int, tuple[str, ...], Tensor]] = deque(maxlen=RECENT_UPDATES)
        self._origin: State | None = None
        self._has_told = False

    def prepare(self, hook: str, phase: Phase) -> None:
        """Copy what the update starts from, if it may be the one that stops the run; else do nothing."""
        on_the_way = sum(judged.hook == hook for judged in self._judged)
        may_be_last = self._known.get(hook, 0) + on_the_way + 1 >= self._limit
        self._origin = origin(self._workflow, self._rng, phase) if may_be_last else None

    def judge(self, hook: str, batch: Batch | None, metrics: Metrics, counters: Counters) -> None:
        """Count the update; RunStoppedError when it, or the one before it, was one too many."""
        skipped = skipped_flag(metrics)
        if skipped is None:
            return
        self._remember(metrics, counters)
        in_a_row = self._in_a_row.setdefault(hook, torch.zeros_like(self._total))
        self._total += skipped
        in_a_row.add_(1).mul_(skipped)
        content = None
        if self._origin is not None:
            place = {"hook": hook, "agent_steps": counters.agent_steps, "updates": counters.updates}
            content = {**place, "device": str(self._device), "batch": batch_state(batch), **self._origin}
        self._judged.append(_Judged(hook=hook, content=content, in_a_row=_Arrival(in_a_row)))
        while len(self._judged) > self._lag:
            self._look_at(self._judged.popleft())

    def finish(self) -> None:
        """Look at what is still on the way; RunStoppedError as in ``judge``."""
        while self._judged:
            self._look_at(self._judged.popleft())

    @property
    def has_counted(self) -> bool:
        return bool(self._in_a_row)

    def total(self) -> int:
        """Skipped updates since the run began. Waits for the device."""
        return int(self._total)

    def get_state(self) -> State:
        return {"total": self.total(), "in_a_row": {hook: int(count) for hook, count in self._in_a_row.items()}}

    def set_state(self, state: State) -> None:
        self._judged.clear()
        self._total.fill_(state["total"])
        for hook, count in state["in_a_row"].items():
            self._in_a_row.setdefault(hook, torch.zeros_like(self._total)).fill_(count)
            self._known[hook] = count

    def _remember(self, metrics: Metrics, counters: Counters) -> None:
        # stack copies: a captured graph overwrites its metric tensors in the next replay.
        values = torch.stack([value.detach() for value in metrics.values()])
        self._recent.append((counters.updates, tuple(metrics), values))

    def _look_at(self, judged: _Judged) -> None:
        count = self._known[judged.hook] = judged.in_a_row.number()
        if count and not self._has_told:
            self._has_told = True
            self._say("An update was skipped: a loss or gradient was not finite. `train/skipped_updates` counts them.")
        if count >= self._limit:
            assert judged.content is not None, "the counts before it must have made `prepare` copy"
            raise RunStoppedError(self._last_words(judged.hook, count, judged.content))

    def _last_words(self, hook: str, count: int, content: State) -> str:
        text = (
            f"stopped: {count} updates in a row (hook {hook}) were skipped, because a loss or gradient was not finite"
        )
        try:
            folder = self._black_box.write({**content, "metrics": self._recent_metrics()})
        except OSError as error:
            return f"{text}; no black box could be written below {self._black_box.run}: {reason(error)}."
        return (
            f"{text}. What the last one started from is in {folder}: "
            f"`{reverie_command('replay-update', folder)}` names the first tensor that is not finite, and "
            f"`{reverie_command('resume', self._black_box.run)}` goes on from the last checkpoint."
        )

    def _recent_metrics(self) -> list[State]:
        return [
            {"updates": updates, **dict(zip(names, values.tolist(), strict=True))}
            for updates, names, values in self._recent
        ]


class _Arrival:
    """A number on its way from the device to the host."""

    def __init__(self, number: Tensor) -> None:
        self._copy = number.to("cpu", copy=True, non_blocking=True)
        self._event: torch.cuda.Event | None = None
        if number.is_cuda:
            self._event = torch.cuda.Event()
            self._event.record()

    def number(self) -> int:
        """Waits only for what was queued before the number."""
        if self._event is not None:
            self._event.synchronize()
        return int(self._copy)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Judged:
    """An update whose count the host has not looked at."""

    hook: str
    content: State | None
    """What its black box would hold."""
    in_a_row: _Arrival
