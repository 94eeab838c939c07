"""The numbers of TD-MPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from reverie.types import ReverieError, require

LOSSES = ("consistency", "reward", "value", "termination")


@dataclass(frozen=True, kw_only=True, slots=True)
class Discount:
    """gamma = 1 - 1 / (L / ``parts``), between two bounds, for episodes of L steps."""

    parts: float = 5.0
    low: float = 0.95
    high: float = 0.995

    def __post_init__(self) -> None:
        require("workflow.discount.parts", self.parts, at_least=1e-3)
        require("workflow.discount.low", self.low, at_least=0, at_most=1)
        require("workflow.discount.high", self.high, at_least=self.low, at_most=1)

    def of(self, episode_length: int) -> float:
        fraction = episode_length / self.parts
        return min(max((fraction - 1) / fraction, self.low), self.high)


@dataclass(frozen=True, kw_only=True, slots=True)
class TdmpcConfig:
    loss_weights: Mapping[str, float]
    """One weight per loss of the model."""
    episode_length: int | tuple[int, ...]
    """Of the task, in agent steps, from which gamma follows; of one without a limit, about how long episodes are. Of
    several tasks one for all of them, or a list in their order.
    """
    discount: Discount = field(default_factory=Discount)
    episodic: bool = False
    """Whether episodes can end before their time, so that ends are learned, and nothing is expected after them."""
    rho: float = 0.5
    """What the losses of each further step of a rollout are multiplied with once more."""
    entropy_scale: float = 1e-4
    plans: bool = True
    """Whether the agent acts by planning, or by its learned policy alone."""
    priority: Literal["losses", "value_errors"] = "losses"
    """What a sequence is worth to the sampler `prioritized`: what rewards and values cost in it, or how far off values
    are.
    """

    def __post_init__(self) -> None:
        for length in self.lengths:
            require("workflow.episode_length", length, at_least=1)
        require("workflow.rho", self.rho, at_least=0, at_most=1)
        require("workflow.entropy_scale", self.entropy_scale, at_least=0)
        if self.loss_weights.keys() != set(LOSSES):
            raise ReverieError(
                f"`workflow.loss_weights` must have the keys {', '.join(LOSSES)}, got {', '.join(self.loss_weights)}."
            )

    @property
    def lengths(self) -> tuple[int, ...]:
        return (self.episode_length,) if isinstance(self.episode_length, int) else self.episode_length

    def gamma(self, *, tasks: int, device: torch.device) -> float | Tensor:
        """One number, or that of each task where ``episode_length`` is a list."""
        if isinstance(self.episode_length, int):
            return self.discount.of(self.episode_length)
        if len(self.episode_length) != tasks:
            raise ReverieError(
                f"`workflow.episode_length` must be one length or one for each task: there are {tasks} tasks and "
                f"{len(self.episode_length)} lengths."
            )
        return torch.tensor([self.discount.of(length) for length in self.episode_length], device=device)


def refuse_crossing(config: Mapping[str, Any]) -> None:
    """A transition into the next episode would teach the model a leap that no action makes."""
    for batch in _batches(config.get("training", {}).get("phases", ())):
        if batch.get("crosses_episodes") is not False:
            raise ReverieError(
                "TD-MPC learns from sequences inside one episode: set `crosses_episodes: false` in every batch of "
                "`training.phases` (with phases=pretrained: training.crosses_episodes=false)."
            )


def _batches(node: Any) -> Iterable[Mapping[str, Any]]:
    """Every batch that the phases ask for, at any depth."""
    if isinstance(node, Mapping):
        if isinstance(node.get("batch"), Mapping):
            yield node["batch"]
        for value in node.values():
            yield from _batches(value)
    elif isinstance(node, list | tuple):
        for value in node:
            yield from _batches(value)
