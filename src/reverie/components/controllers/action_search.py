"""What a planner believes about good actions, how it draws from that, and how it learns from the best of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from reverie.types import require


class Belief(NamedTuple):
    """About the actions of every step of a plan, both [H, N, A]."""

    mean: Tensor
    std: Tensor


class ActionSearch(ABC):
    """Actions are vectors [..., A], the form in which networks read them."""

    @abstractmethod
    def begin(self, previous_mean: Tensor) -> Belief:
        """``previous_mean`` [H, N, A] is that of the plan before, already moved on by one step."""

    @abstractmethod
    def noise(self, shape: Sequence[int], action_dim: int, rng: Generator) -> Tensor:
        """What ``drawn`` or ``final`` draw with, for actions of this leading shape."""

    @abstractmethod
    def drawn(self, belief: Belief, noise_HNSA: Tensor) -> Tensor:
        """[H, N, S, A]."""

    @abstractmethod
    def learned(self, elites_HNEA: Tensor, score_NE: Tensor) -> Belief: ...

    def settled(self, before: Belief, learned: Belief, updates: Tensor) -> Belief:
        """What an iteration leaves of what was believed ``before`` it and what it ``learned``, in an agent of as many
        updates.
        """
        return learned

    @abstractmethod
    def final(self, belief: Belief, action_NA: Tensor, noise_NA: Tensor | None) -> Tensor:
        """The action that is taken, from the first one of the chosen plan. Without noise in evaluations."""


class GaussianSearch(ActionSearch):
    """Independent normals, clipped to [-1, 1], with deviations from ``min_std`` to ``max_std``, which they begin at."""

    def __init__(self, *, min_std: float = 0.05, max_std: float = 2.0) -> None:
        require("min_std of the search", min_std, at_least=0)
        require("max_std of the search", max_std, at_least=min_std)
        self.min_std, self.max_std = min_std, max_std

    def begin(self, previous_mean: Tensor) -> Belief:
        return Belief(previous_mean, torch.full_like(previous_mean, self.max_std))

    def noise(self, shape: Sequence[int], action_dim: int, rng: Generator) -> Tensor:
        return torch.randn(*shape, action_dim, device=rng.device, generator=rng)

    def drawn(self, belief: Belief, noise_HNSA: Tensor) -> Tensor:
        mean, std = belief.mean.unsqueeze(2), belief.std.unsqueeze(2)
        return torch.addcmul(mean, std, noise_HNSA).clamp(-1, 1)

    def learned(self, elites_HNEA: Tensor, score_NE: Tensor) -> Belief:
        weight = score_NE.unsqueeze(-1)
        total = score_NE.sum(-1, keepdim=True) + 1e-9
        mean = (weight * elites_HNEA).sum(2) / total
        variance = (weight * (elites_HNEA - mean.unsqueeze(2)).square()).sum(2) / total
        return Belief(mean, variance.sqrt().clamp(self.min_std, self.max_std))

    def final(self, belief: Belief, action_NA: Tensor, noise_NA: Tensor | None) -> Tensor:
        if noise_NA is not None:
            action_NA = torch.addcmul(action_NA, belief.std[0], noise_NA)
        return action_NA.clamp(-1, 1)
