"""What a latent and an action lead to: the next latent, the reward on the way, whether the episode ends there."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reverie.components.networks.distributions import Binary
from reverie.components.networks.numbers import NumberForm, PredictedNumber


class LatentDynamics(nn.Module):
    """The next latent. ``network`` makes a module of (inputs, outputs).

    The last ``task_dim`` numbers of a latent say which task is played: no action changes them.
    """

    def __init__(
        self, *, latent_dim: int, action_dim: int, network: Callable[..., nn.Module], task_dim: int = 0
    ) -> None:
        super().__init__()
        self._task_dim = task_dim
        self.network = network(latent_dim + action_dim, latent_dim - task_dim)

    def forward(self, latent: Tensor, action: Tensor) -> Tensor:
        moved = self.network(torch.cat([latent, action], -1)).float()
        return torch.cat([moved, latent[..., -self._task_dim :]], -1) if self._task_dim else moved


class RewardHead(nn.Module):
    """The reward that arrives with the next latent, in the ``form`` of numbers that is given."""

    def __init__(
        self, *, latent_dim: int, action_dim: int, form: NumberForm, network: Callable[..., nn.Module]
    ) -> None:
        super().__init__()
        self.form = form
        self.network = network(latent_dim + action_dim, form.width)

    def output(self, latent: Tensor, action: Tensor) -> Tensor:
        """What the network says before anybody reads a number in it."""
        return self.network(torch.cat([latent, action], -1))

    def forward(self, latent: Tensor, action: Tensor) -> PredictedNumber:
        return self.form(self.output(latent, action))


class TerminationHead(nn.Module):
    """Whether an episode ended on the way to this latent. Without ``is_learned`` there is no network and no end."""

    def __init__(self, *, latent_dim: int, is_learned: bool, network: Callable[..., nn.Module]) -> None:
        super().__init__()
        self.network = network(latent_dim, 1) if is_learned else None

    @property
    def is_learned(self) -> bool:
        return self.network is not None

    def logit(self, latent: Tensor) -> Tensor:
        assert self.network is not None, "whoever asks has seen that it is learned"
        return self.network(latent).squeeze(-1).float()

    def forward(self, latent: Tensor) -> Binary:
        return Binary(self.logit(latent))
