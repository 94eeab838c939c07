"""Which optimiser moves what: one for everything, or others beside it for the actor and the critic."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from reverie.runtime.finite import SKIPPED
from reverie.runtime.flat_optimizer import FlatOptimizer
from reverie.types import Metrics, ReverieError
from reverie.workflows.base import weighted_sum

T = TypeVar("T")

OWN_LOSSES: Mapping[str, frozenset[str]] = {
    "actor": frozenset({"policy"}),
    "critic": frozenset({"value", "replay_value"}),
}
"""Losses of the parts that may have an optimiser of their own; ``model`` takes what is left."""


@dataclass(kw_only=True, slots=True)
class Gradients:
    """By optimiser: its loss, and the gradients of its parameters."""

    totals: dict[str, Tensor]
    by_optimizer: dict[str, list[Tensor]]

    def detached(self) -> Gradients:
        """Without the graph that they came out of, for whoever keeps them."""
        return Gradients(
            totals={name: total.detach() for name, total in self.totals.items()}, by_optimizer=self.by_optimizer
        )


class DreamerOptimizers:
    """Each optimiser differentiates its own losses by its own parameters. Together they make one step."""

    def __init__(
        self,
        makers: Mapping[str, Callable[..., FlatOptimizer]],
        modules: Mapping[str, nn.Module],
        loss_weights: Mapping[str, float],
    ) -> None:
        for name in makers.keys() - OWN_LOSSES.keys() - {"model"}:
            raise ReverieError(f"`optimizers` may have model, actor and critic, got {name}.")
        if "model" not in makers:
            raise ReverieError("`optimizers.model` is missing: it trains all that has no optimiser of its own.")
        self._own = {name: OWN_LOSSES[name] for name in makers if name != "model"}
        parameters = {name: trainable_parameters({name: modules[name]}) for name in self._own}
        parameters["model"] = trainable_parameters({key: one for key, one in modules.items() if key not in self._own})
        self._weights = self._parted(loss_weights)
        self.by_name = {name: make(parameters[name]) for name, make in makers.items()}

    @property
    def are_several(self) -> bool:
        return len(self.by_name) > 1

    def step(self, losses: Mapping[str, Tensor], *, progress: Tensor | None) -> Metrics:
        """Metrics have the optimiser's name in front where there are several; ``skipped`` is one for all."""
        # All gradients first: the backward passes need the weights of the forward pass.
        return self.apply(self.gradients(losses), progress=progress)

    def gradients(self, losses: Mapping[str, Tensor]) -> Gradients:
        """The first half of a step."""
        totals = {name: weighted_sum(part, self._weights[name]) for name, part in self._parted(losses).items()}
        by_optimizer = {name: optimizer.gradients(totals[name]) for name, optimizer in self.by_name.items()}
        return Gradients(totals=totals, by_optimizer=by_optimizer)

    def apply(self, found: Gradients, *, progress: Tensor | None) -> Metrics:
        """The second half."""
        watched = self._watched(found.totals, found.by_optimizer)
        skipped, metrics = [], {}
        for name, optimizer in self.by_name.items():
            prefix = f"{name}/" if self.are_several else ""
            moved = optimizer.apply(found.by_optimizer[name], watched=watched, progress=progress)
            skipped.append(moved.pop(SKIPPED))
            metrics |= {f"{prefix}{key}": value for key, value in moved.items()}
        return metrics | {SKIPPED: torch.stack(skipped).amax()}

    def _watched(self, totals: Mapping[str, Tensor], gradients: Mapping[str, list[Tensor]]) -> Tensor:
        """What is not finite for one optimiser stops all: half an update would be a step of another algorithm."""
        sums = [one.sum() for part in gradients.values() for one in part] if len(gradients) > 1 else []
        return torch.stack([*totals.values(), *sums])  # an optimiser looks at its own gradients by itself

    def _parted(self, by_loss: Mapping[str, T]) -> dict[str, dict[str, T]]:
        """By optimiser; each loss goes to exactly one."""
        taken = frozenset[str]().union(*self._own.values())
        losses = {**self._own, "model": by_loss.keys() - taken}
        return {name: {key: value for key, value in by_loss.items() if key in own} for name, own in losses.items()}


def trainable_parameters(modules: Mapping[str, nn.Module]) -> dict[str, nn.Parameter]:
    return {
        f"{name}.{key}": parameter
        for name, module in modules.items()
        for key, parameter in module.named_parameters()
        if parameter.requires_grad
    }
