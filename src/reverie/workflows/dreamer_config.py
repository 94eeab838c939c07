"""The numbers of Dreamer. They have a file of their own because the workflow fills one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reverie.components.controllers.exploration import Exploration
from reverie.types import ReverieError, require

LOSSES = ("reconstruction", "reward", "continue", "dynamics", "representation", "policy", "value", "replay_value")
OPTIONAL_LOSSES = ("continue", "replay_value")
"""Computed where ``loss_weights`` names them."""
GRAD_HEADS = ("reconstruction", "reward", "continue", "replay_value")
"""Losses of heads that read replayed latents: their gradient may reach the representation or stop at the head."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DreamerConfig:
    loss_weights: Mapping[str, float]
    """One weight per loss; the names must be exactly those that ``update`` computes."""
    horizon: int = 15
    """Imagined steps from every replayed state."""
    discount_horizon: int = 333
    """gamma = 1 - 1 / discount_horizon."""
    has_discount_in_head: bool = True
    """Whether gamma is part of what the continue head learns; else its prediction is multiplied by gamma."""
    rounds_continues: bool = False
    """Whether an imagined episode goes on or ends, instead of both by their chances."""
    reward_transform: Literal["none", "tanh"] = "none"
    """What the reward head learns of a reward, and actor and critic strive for."""
    replay_start: Literal["stored", "initial"] = "stored"
    """Where the latents of a replayed sequence begin: with what was stored, or as an episode does."""
    free_nats: float = 1.0
    """KL below this is not reduced further."""
    free_nats_of: Literal["state", "mean"] = "state"
    """Whether each state has its free nats, or the mean over the batch."""
    entropy_scale: float = 3e-4
    slow_regularizer: float = 1.0
    """Weight of the pull of the critic towards its slow copy."""
    replay_lambda: float = 0.95
    """Lambda of the returns along replayed sequences."""
    grad_heads: tuple[str, ...] = GRAD_HEADS
    """Losses that also train the representation. The two KL losses always do, those of actor and critic never."""
    exploration: Exploration = field(default_factory=Exploration)

    def __post_init__(self) -> None:
        require("workflow.horizon", self.horizon, at_least=1)
        require("workflow.discount_horizon", self.discount_horizon, at_least=2)
        require("workflow.replay_lambda", self.replay_lambda, at_least=0, at_most=1)
        for name in ("free_nats", "entropy_scale", "slow_regularizer"):
            require(f"workflow.{name}", getattr(self, name), at_least=0)
        given = self.loss_weights.keys()
        if not set(LOSSES) - set(OPTIONAL_LOSSES) <= given <= set(LOSSES):
            raise ReverieError(
                f"`workflow.loss_weights` must have the keys {', '.join(LOSSES)} ({' and '.join(OPTIONAL_LOSSES)} only "
                f"where they are learned), got {', '.join(given)}."
            )
        heads = [name for name in GRAD_HEADS if name in given]
        for name in self.grad_heads:
            if name not in heads:
                raise ReverieError(f"`workflow.grad_heads` may name {', '.join(heads)} here, got {name}.")
