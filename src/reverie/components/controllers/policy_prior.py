"""The policy that TD-MPC learns beside its model: it proposes plans, and says which action a state is worth with."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reverie.types import ReverieError, Space, require

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class PriorDraw(NamedTuple):
    """What a policy says of latents [..., D]."""

    action: Tensor
    """[..., A]: drawn, as a vector that networks read."""
    mode: Tensor
    """[..., A]: without noise."""
    entropy: Tensor
    """[...]: of the policy; where it has no formula, minus the log-probability of what was drawn."""
    bonus: Tensor
    """[...]: what the policy's loss rewards of it."""
    spread: Tensor
    """[..., A]: log-deviations of numbers, log-probabilities of classes."""


class Worth(NamedTuple):
    """What the policy's action is worth."""

    mean: Tensor
    """[...]."""
    each: Tensor
    """[K, ...]: every action that was asked about."""


Valued = Callable[[Tensor, Tensor], Tensor]
"""Latents [..., D] and actions [..., A] in, a value of each [...] out."""


class PolicyPrior(nn.Module, ABC):
    """``action_dim`` is the length of an action as a vector, ``noise_dim`` what drawing one takes."""

    action_dim: int
    noise_dim: int

    @abstractmethod
    def noise(self, shape: Sequence[int], rng: Generator) -> Tensor:
        """What actions for latents of this leading shape are drawn with [..., noise_dim]."""

    @abstractmethod
    def forward(self, latent: Tensor, noise: Tensor, mask: Tensor | None = None) -> PriorDraw:
        """Where ``mask`` [..., A] is 0 the task does not read the action: it is 0 there, and counts nowhere."""

    def worth(self, latent: Tensor, draw: PriorDraw, value: Valued) -> Worth:
        """By the action that was drawn, where there is no better way."""
        found = value(latent, draw.action)
        return Worth(found, found.unsqueeze(0))

    def gain(self, draw: PriorDraw, worth: Worth, *, scale: Tensor, entropy_scale: float) -> Tensor:
        """[...]: what the policy is raised by. ``scale`` is what values are divided by."""
        return entropy_scale * draw.bonus + worth.mean / scale

    @abstractmethod
    def vector(self, action: Tensor) -> Tensor:
        """An action of the environment as a vector."""

    @abstractmethod
    def native(self, vector: Tensor) -> Tensor:
        """The other way."""


class GaussianPrior(PolicyPrior):
    """A normal behind a tanh, with its log-deviation between two bounds.

    The bonus is the entropy estimate times A * log p(u) / log p(a), with u before and a behind the tanh: what remains
    of it is -A * log p(u), in which the tanh does not count and a larger action space weighs more.
    """

    def __init__(
        self,
        *,
        space: Space,
        latent_dim: int,
        network: Callable[..., nn.Module],
        min_log_std: float = -10.0,
        max_log_std: float = 2.0,
    ) -> None:
        super().__init__()
        require_numbers(type(self).__name__, space)
        require("max_log_std of the policy", max_log_std, at_least=min_log_std)
        self.action_dim = self.noise_dim = space.dim
        self.min_log_std, self.span = min_log_std, max_log_std - min_log_std
        self.network = network(latent_dim, 2 * space.dim)

    def noise(self, shape: Sequence[int], rng: Generator) -> Tensor:
        return torch.randn(*shape, self.noise_dim, device=rng.device, generator=rng)

    def forward(self, latent: Tensor, noise: Tensor, mask: Tensor | None = None) -> PriorDraw:
        mean, raw = self.network(latent).float().chunk(2, -1)
        log_std = bounded_log_std(raw, low=self.min_log_std, span=self.span)
        dims: int | Tensor = self.action_dim
        if mask is not None:
            mean, log_std, noise, dims = mean * mask, log_std * mask, noise * mask, mask.sum(-1)
        action, gaussian, squashed = squashed_draw(mean, log_std, noise, mask)
        bonus = -squashed * (gaussian * dims / (squashed + 1e-8))
        return PriorDraw(action, mean.tanh(), -squashed, bonus, log_std)

    def vector(self, action: Tensor) -> Tensor:
        return action.float()

    def native(self, vector: Tensor) -> Tensor:
        return vector


def require_numbers(policy: str, space: Space) -> None:
    """Refuse a task whose actions are no vectors of numbers."""
    if space.is_discrete or len(space.shape) != 1:
        raise ReverieError(
            f"the policy {policy} needs actions that are vectors of numbers, but the task's are "
            f"{'discrete' if space.is_discrete else f'of shape {space.shape}'}: choose another task or algorithm."
        )


def bounded_log_std(raw: Tensor, *, low: float, span: float) -> Tensor:
    return low + 0.5 * span * (raw.tanh() + 1)


def squashed_draw(
    mean: Tensor, log_std: Tensor, noise: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """tanh(mean + std * noise), and its log-probability before and behind the tanh, of the dimensions in ``mask``."""
    action = (mean + noise * log_std.exp()).tanh()
    gaussian = -0.5 * noise.square() - log_std - _HALF_LOG_TWO_PI
    correction = (F.relu(1 - action.square()) + 1e-6).log()
    if mask is not None:
        gaussian, correction = gaussian * mask, correction * mask
    gaussian = gaussian.sum(-1)
    return action, gaussian, gaussian - correction.sum(-1)
