"""What is added to a policy's actions while it collects data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

from reverie.components.controllers.random_policy import random_action
from reverie.types import ReverieError, Space, require


@dataclass(frozen=True, kw_only=True, slots=True)
class Exploration:
    """How actions differ from samples of the policy."""

    action_noise: float = 0.0
    """Standard deviation of the noise on continuous actions in training."""
    epsilon: float = 0.0
    """Share of discrete actions in training that are drawn at random."""
    evaluates_greedily: bool = False
    """Take the most likely action in evaluations; the paper samples there as in training."""

    def __post_init__(self) -> None:
        require("workflow.exploration.action_noise", self.action_noise, at_least=0)
        require("workflow.exploration.epsilon", self.epsilon, at_least=0, at_most=1)

    def check(self, space: Space) -> None:
        """An option that this space has no use for would be silently ignored."""
        if space.is_discrete and self.action_noise:
            raise ReverieError("`workflow.exploration.action_noise` needs continuous actions: use epsilon here.")
        if not space.is_discrete and self.epsilon:
            raise ReverieError("`workflow.exploration.epsilon` needs discrete actions: use action_noise here.")

    def explored(self, action: Tensor, space: Space, rng: Generator | None) -> Tensor:
        """The actions that are taken in training, one row per environment. Unchanged when ``rng`` is None."""
        if rng is None:
            return action
        if self.action_noise:
            action = action + self.action_noise * torch.randn(action.shape, device=action.device, generator=rng)
        if self.epsilon:
            is_random = torch.rand(len(action), device=action.device, generator=rng) < self.epsilon
            drawn = random_action(space, len(action), rng)
            action = torch.where(is_random.view(-1, *[1] * (action.dim() - 1)), drawn, action)
        return action
