"""A planner's search over discrete actions: how likely it holds each class to be, at every step of a plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor

from reverie.components.controllers.action_search import ActionSearch, Belief
from reverie.components.networks.distributions import passed_at
from reverie.components.networks.one_hot import chosen_one_hot, class_counts
from reverie.types import ReverieError, Space, require


class CategoricalSearch(ActionSearch):
    """Independent classes, drawn as whole one-hots, so that the model never meets an action that cannot be taken.

    A belief's mean is the probability of each class. What is learned from the best plans is how often they chose it,
    with ``uniform_share`` of the uniform distribution; a plan begins with the one before and ``fresh_share`` of it.
    """

    def __init__(self, *, space: Space, uniform_share: float = 0.05, fresh_share: float = 0.5) -> None:
        if space.classes is None:
            raise ReverieError(
                "the search CategoricalSearch needs discrete actions, but the task's are numbers: choose another task "
                "or GaussianSearch."
            )
        require("uniform_share of the search", uniform_share, at_least=0, at_most=1)
        require("fresh_share of the search", fresh_share, at_least=uniform_share, at_most=1)
        self._counts = class_counts(space.classes)
        self._uniform_share, self._fresh_share = uniform_share, fresh_share

    def begin(self, previous_mean: Tensor) -> Belief:
        """Whatever a row lacks to 1 is uniform: all of it, where there was no plan."""

        def filled(part: Tensor) -> Tensor:
            return part + (1 - part.sum(-1, keepdim=True)) / part.shape[-1]

        return self._belief(self._by_element(filled, previous_mean), share=self._fresh_share)

    def noise(self, shape: Sequence[int], action_dim: int, rng: Generator) -> Tensor:
        return torch.rand(*shape, len(self._counts), device=rng.device, generator=rng)

    def drawn(self, belief: Belief, noise_HNSA: Tensor) -> Tensor:
        def chosen(part: Tensor, point: Tensor) -> Tensor:
            return chosen_one_hot(passed_at(part.unsqueeze(2), point), part.shape[-1])

        return self._by_element(chosen, belief.mean, noise_HNSA.split(1, -1))

    def learned(self, elites_HNEA: Tensor, score_NE: Tensor) -> Belief:
        total = score_NE.sum(-1, keepdim=True) + 1e-9
        frequency = (score_NE.unsqueeze(-1) * elites_HNEA).sum(2) / total
        return self._belief(frequency, share=self._uniform_share)

    def final(self, belief: Belief, action_NA: Tensor, noise_NA: Tensor | None) -> Tensor:
        """The most likely action; with noise the one of the chosen plan, or a uniform one in ``uniform_share``."""
        if noise_NA is None:
            return self._by_element(lambda part: chosen_one_hot(part.argmax(-1), part.shape[-1]), belief.mean[0])
        if not self._uniform_share:
            return action_NA

        def explored(part: Tensor, point: Tensor) -> Tensor:
            count = part.shape[-1]
            other = (point.squeeze(-1) * (count / self._uniform_share)).long().clamp(max=count - 1)
            return torch.where(point < self._uniform_share, chosen_one_hot(other, count), part)

        return self._by_element(explored, action_NA, noise_NA.split(1, -1))

    def _belief(self, probs: Tensor, *, share: float) -> Belief:
        """Mixed with a share of the uniform distribution. The deviation is that of the one-hots' numbers."""
        mixed = self._by_element(lambda part: (1 - share) * part + share / part.shape[-1], probs)
        return Belief(mixed, (mixed * (1 - mixed)).clamp(min=0).sqrt())

    def _by_element(self, function: Callable[..., Tensor], vector: Tensor, *beside: Sequence[Tensor]) -> Tensor:
        parts = vector.split(self._counts, -1)
        return torch.cat([function(*found) for found in zip(parts, *beside, strict=True)], -1)
