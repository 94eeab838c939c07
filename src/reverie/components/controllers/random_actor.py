"""Random actions from an agent that still filters what it sees: its rows can train the world model like all others."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from reverie.components.controllers.random_policy import random_action
from reverie.components.networks.one_hot import one_hot
from reverie.types import Space


class RandomActor:
    """Stands where an actor stands, and draws uniformly from the action space whatever the latent is."""

    def __init__(self, *, space: Space) -> None:
        self.space = space

    def __call__(self, feature: Tensor) -> UniformActions:
        return UniformActions(self.space, len(feature), feature.device)

    def vector(self, action: Tensor) -> Tensor:
        return action if self.space.classes is None else one_hot(action, self.space.classes)


class UniformActions:
    def __init__(self, space: Space, count: int, device: torch.device) -> None:
        self._space, self._count, self._device = space, count, device

    def sample(self, rng: Generator | None) -> Tensor:
        """All actions are equally likely; without ``rng`` it is the first, or zero."""
        if rng is not None:
            return random_action(self._space, self._count, rng)
        dtype = torch.int64 if self._space.is_discrete else torch.float32
        return torch.zeros(self._count, *self._space.shape, dtype=dtype, device=self._device)
