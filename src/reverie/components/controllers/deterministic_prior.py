"""The policy of the first TD-MPC: one action for a latent, and noise of a fixed size around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from reverie.components.controllers.policy_prior import PolicyPrior, PriorDraw, require_numbers
from reverie.types import Space, require

_MARGIN = 1e-6
"""Between drawn actions and the ends of their range."""


class DeterministicPrior(PolicyPrior):
    """tanh of a network, drawn with normal noise of deviation ``std`` that is cut at ``noise_limit``.

    Where an action would leave [-1, 1] it is moved back, and its gradient is as if it had not been. There is no entropy
    to speak of: it counts as 0.
    """

    def __init__(
        self,
        *,
        space: Space,
        latent_dim: int,
        network: Callable[..., nn.Module],
        std: float = 0.05,
        noise_limit: float = 0.3,
    ) -> None:
        super().__init__()
        require_numbers(type(self).__name__, space)
        require("std of the policy", std, at_least=0)
        require("noise_limit of the policy", noise_limit, at_least=0)
        self.action_dim = self.noise_dim = space.dim
        self._std, self._noise_limit = std, noise_limit
        self.network = network(latent_dim, space.dim)

    def noise(self, shape: Sequence[int], rng: Generator) -> Tensor:
        return torch.randn(*shape, self.noise_dim, device=rng.device, generator=rng)

    def forward(self, latent: Tensor, noise: Tensor, mask: Tensor | None = None) -> PriorDraw:
        mode = self.network(latent).float().tanh()
        drawn = mode + (self._std * noise).clamp(-self._noise_limit, self._noise_limit)
        action = drawn + (drawn.clamp(-1 + _MARGIN, 1 - _MARGIN) - drawn).detach()
        if mask is not None:
            mode, action = mode * mask, action * mask
        none = torch.zeros_like(mode[..., 0])
        return PriorDraw(action, mode, entropy=none, bonus=none, spread=torch.full_like(mode, self._std).log())

    def vector(self, action: Tensor) -> Tensor:
        return action.float()

    def native(self, vector: Tensor) -> Tensor:
        return vector
