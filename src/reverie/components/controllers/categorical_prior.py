"""TD-MPC's policy for discrete actions: how likely each class is, and what that is worth, without any sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from reverie.components.controllers.policy_prior import PolicyPrior, PriorDraw, Valued
from reverie.components.networks.distributions import OneHots
from reverie.components.networks.one_hot import chosen_one_hot, class_counts, class_indices, one_hot
from reverie.types import ReverieError, Space, require


class CategoricalPrior(PolicyPrior):
    """Classes with ``unimix`` of the uniform distribution; several elements are independent, side by side in vectors.

    The bonus is the exact entropy times ``bonus_weight``.
    """

    eye: Tensor
    others: Tensor

    def __init__(
        self,
        *,
        space: Space,
        latent_dim: int,
        network: Callable[..., nn.Module],
        unimix: float = 0.01,
        bonus_weight: float = 10.0,
    ) -> None:
        super().__init__()
        if space.classes is None:
            raise ReverieError(
                "the policy CategoricalPrior needs discrete actions, but the task's are numbers: choose another task "
                "or GaussianPrior."
            )
        require("unimix of the policy", unimix, at_least=0, at_most=1)
        require("bonus_weight of the policy", bonus_weight, at_least=0)
        self._classes, self._counts = space.classes, class_counts(space.classes)
        self._unimix, self._bonus_weight = unimix, bonus_weight
        self.action_dim, self.noise_dim = space.dim, len(self._counts)
        self.network = network(latent_dim, space.dim)
        element = torch.repeat_interleave(torch.tensor(self._counts))
        self.register_buffer("eye", torch.eye(space.dim), persistent=False)
        self.register_buffer("others", (element != element.unsqueeze(1)).float(), persistent=False)

    def noise(self, shape: Sequence[int], rng: Generator) -> Tensor:
        return torch.rand(*shape, self.noise_dim, device=rng.device, generator=rng)

    def forward(self, latent: Tensor, noise: Tensor) -> PriorDraw:
        choice = OneHots(self.network(latent), self._counts, unimix=self._unimix)
        entropy = choice.entropy()
        return PriorDraw(
            action=self._one_hots(choice.drawn(noise)),
            mode=self._one_hots(choice.drawn(None)),
            entropy=entropy,
            bonus=self._bonus_weight * entropy,
            spread=torch.cat([one.probs for one in choice.elements], -1),
        )

    def expectation(self, latent: Tensor, draw: PriorDraw, value: Valued) -> Tensor:
        """Exactly over all classes of one element. Of several, over the classes of each while the others are as drawn:
        the mean of these expectations is the value, and their sum has the gradient, both without bias.
        """
        tried = self._tried(draw.action)
        values = value(latent.expand(self.action_dim, *latent.shape), tried)
        total = (draw.spread.movedim(-1, 0) * values).sum(0)
        count = len(self._counts)
        return total if count == 1 else total - (1 - 1 / count) * total.detach()

    def _tried(self, action: Tensor) -> Tensor:
        """[A, ..., A]: the action with the element that a place belongs to at the class of this place."""
        shape = (self.action_dim, *[1] * (action.dim() - 1), self.action_dim)
        return action.unsqueeze(0) * self.others.view(shape) + self.eye.view(shape)

    def _one_hots(self, index: Tensor) -> Tensor:
        """Of one index per element."""
        parts = zip(index.unbind(-1), self._counts, strict=True)
        return torch.cat([chosen_one_hot(one, count) for one, count in parts], -1)

    def vector(self, action: Tensor) -> Tensor:
        return one_hot(action, self._classes)

    def native(self, vector: Tensor) -> Tensor:
        return class_indices(vector, self._classes)
