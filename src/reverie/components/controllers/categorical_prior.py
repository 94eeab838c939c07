"""TD-MPC's policy for discrete actions: how likely each class is, and what that is worth, without any sampling."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Generator, Tensor, nn

from reverie.components.controllers.policy_prior import PolicyPrior, PriorDraw, Valued, Worth
from reverie.components.networks.distributions import OneHots
from reverie.components.networks.one_hot import chosen_one_hot, class_counts, class_indices, one_hot
from reverie.types import ReverieError, Space, require

_COLDEST = 1e-6
"""Temperature, for a policy without any bonus."""


class CategoricalPrior(PolicyPrior):
    """Classes with ``unimix`` of the uniform distribution; several elements are independent, side by side in vectors.

    The bonus is the exact entropy times ``bonus_weight``, and ``unimix`` is no part of what is learned.
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

    def forward(self, latent: Tensor, noise: Tensor, mask: Tensor | None = None) -> PriorDraw:
        assert mask is None, "tasks that share an action have continuous ones"
        logits = self.network(latent).float()
        choice = OneHots(logits, self._counts, unimix=self._unimix)
        entropy = choice.entropy()
        return PriorDraw(
            action=self._one_hots(choice.drawn(noise)),
            mode=self._one_hots(choice.drawn(None)),
            entropy=entropy,
            bonus=self._bonus_weight * entropy,
            spread=torch.cat([part.log_softmax(-1) for part in logits.split(self._counts, -1)], -1),
        )

    def worth(self, latent: Tensor, draw: PriorDraw, value: Valued) -> Worth:
        """Exactly over all classes of one element. Of several, the mean of what is expected over the classes of each
        while the others are as drawn, which has no bias.
        """
        each = value(latent.expand(self.action_dim, *latent.shape), self._tried(draw.action))
        elements = OneHots(draw.spread, self._counts, unimix=self._unimix).elements
        probs = torch.cat([one.probs for one in elements], -1).movedim(-1, 0)
        return Worth((probs * each).sum(0) / len(self._counts), each)

    def gain(self, draw: PriorDraw, worth: Worth, *, scale: Tensor, entropy_scale: float) -> Tensor:
        """Minus the cross entropy to what maximises the expectation and its bonus: the softmax of the scaled values.

        The gradient of the expectation itself dies where the policy is sure, be it of the wrong class.
        """
        temperature = scale * max(entropy_scale * self._bonus_weight, _COLDEST)
        values = (worth.each.detach() / temperature).movedim(0, -1)
        wanted = torch.cat([part.softmax(-1) for part in values.split(self._counts, -1)], -1)
        return (wanted * draw.spread).sum(-1)

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
