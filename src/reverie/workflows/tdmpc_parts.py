"""The parts of TD-MPC's update, for measuring."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from reverie.runtime.precision import Precision
from reverie.workflows.tdmpc_optimizers import PROBE, TdmpcOptimizers
from reverie.workflows.update_parts import Part


@dataclass(frozen=True, kw_only=True, slots=True)
class TdmpcSteps:
    """One update on one batch: each step as a function of what the earlier ones gave."""

    targets: Callable[[], object]
    model: Callable[[], Tensor]
    """Its loss."""
    policy: Callable[[], Tensor]
    probe: Callable[[], Tensor] | None
    """What the decoder that people look through costs, where there is one."""
    follow: Part
    """The target networks move."""

    def parts(self, optimizers: TdmpcOptimizers, *, precision: Precision, progress: Tensor) -> dict[str, Part]:
        """Losses go backward too. What is moved at the end are gradients of zero."""
        by_name = optimizers.by_name

        def gradients(name: str, loss: Callable[[], Tensor]) -> list[Tensor]:
            with precision.applied():
                value = loss()
            return by_name[name].gradients(value)

        losses = {"model": self.model, "policy": self.policy}
        losses |= {} if self.probe is None else {PROBE: self.probe}
        zeros = {name: [torch.zeros_like(one) for one in gradients(name, loss)] for name, loss in losses.items()}

        def moved() -> None:
            memory = optimizers.model.memory()
            for name, optimizer in by_name.items():
                skipped = optimizer.apply(zeros[name], progress=progress)["skipped"]
                optimizers.model.take_back(memory, where=skipped.bool())
            self.follow()

        def targeted() -> None:
            with precision.applied():
                self.targets()

        backward = {name: partial(gradients, name, loss) for name, loss in losses.items()}
        return {"targets": targeted, **backward, "optimizers": moved}
