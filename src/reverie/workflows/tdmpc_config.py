"""The numbers of TD-MPC."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

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
    episode_length: int
    """Of the task, in agent steps, from which gamma follows; of one without a limit, about how long episodes are."""
    discount: Discount = field(default_factory=Discount)
    episodic: bool = False
    """Whether episodes can end before their time, so that ends are learned, and nothing is expected after them."""
    rho: float = 0.5
    """What the losses of each further step of a rollout are multiplied with once more."""
    entropy_scale: float = 1e-4
    plans: bool = True
    """Whether the agent acts by planning, or by its learned policy alone."""

    def __post_init__(self) -> None:
        require("workflow.episode_length", self.episode_length, at_least=1)
        require("workflow.rho", self.rho, at_least=0, at_most=1)
        require("workflow.entropy_scale", self.entropy_scale, at_least=0)
        if self.loss_weights.keys() != set(LOSSES):
            raise ReverieError(
                f"`workflow.loss_weights` must have the keys {', '.join(LOSSES)}, got {', '.join(self.loss_weights)}."
            )

    @property
    def gamma(self) -> float:
        return self.discount.of(self.episode_length)


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
