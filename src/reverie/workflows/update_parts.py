"""The parts of an update, each by itself, and how a workflow offers them to somebody who measures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from reverie.runtime.precision import Precision
from reverie.types import Batch, Phase

Part = Callable[[], object]


@runtime_checkable
class HasParts(Protocol):
    """A workflow whose update can be measured in parts."""

    def update_parts(self, batch: Batch, *, phase: Phase) -> dict[str, Part]:
        """Functions by name that together do the work of one update on ``batch``, in its order.

        Each starts from what the ones before it gave in a real forward pass, reads and writes tensors that stay where
        they are, and goes forward and backward where the update does. Weights and statistics may move: what was
        measured is not trained on.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Differentiated:
    """A function forward, and backward to what it read and to the parameters it used.

    The gradients that arrive at its end are ones, which cost what others cost.
    """

    function: Callable[..., Sequence[Tensor]]
    reads: Sequence[Tensor] = ()
    parameters: Sequence[Tensor]
    precision: Precision

    def __call__(self) -> None:
        # Cut off from where they came from, so that the backward pass ends here; and no leaves, as in an update.
        reads = [one.detach().requires_grad_().view_as(one) for one in self.reads]
        with self.precision.applied():
            outputs = [one for one in self.function(*reads) if one.requires_grad]
        if outputs:
            ones = [torch.ones_like(one) for one in outputs]
            torch.autograd.grad(outputs, [*reads, *self.parameters], ones, allow_unused=True)
