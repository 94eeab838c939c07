"""One mixture of normals for every number of a latent, each with weights of its own."""

from __future__ import annotations

import math

from torch import Tensor

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class GaussianMixture:
    """Shaped [..., D, K]: D numbers, independent of each other, with K normals each."""

    def __init__(self, *, logits: Tensor, mean: Tensor, log_stddev: Tensor) -> None:
        self.logits, self.mean, self.log_stddev = logits.float(), mean.float(), log_stddev.float()

    def log_prob(self, value: Tensor) -> Tensor:
        """[..., D]: the log density of each number by itself."""
        distance = (value.unsqueeze(-1) - self.mean) * (-self.log_stddev).exp()
        normals = -0.5 * distance.square() - self.log_stddev - _HALF_LOG_TWO_PI
        return (self.logits.log_softmax(-1) + normals).logsumexp(-1)

    def sample(self, uniform: Tensor, noise: Tensor, *, temperature: float = 1.0) -> Tensor:
        """One value [..., D] from a uniform and a standard normal number for each.

        The weights' logits are divided by ``temperature``, the deviations multiplied by its root: above 1 a dream is
        less certain than the model, near 0 it always takes what is most likely.
        """
        shares = (self.logits / temperature).softmax(-1).cumsum(-1)
        # The last share is 1 but for rounding: a component beyond it must not be asked for.
        chosen = (uniform.unsqueeze(-1) > shares[..., :-1]).sum(-1, keepdim=True)
        mean, log_stddev = (one.gather(-1, chosen).squeeze(-1) for one in (self.mean, self.log_stddev))
        return mean + log_stddev.exp() * math.sqrt(temperature) * noise

    def most_likely(self) -> Tensor:
        """The mean of the heaviest normal, [..., D]."""
        return self.mean.gather(-1, self.logits.argmax(-1, keepdim=True)).squeeze(-1)
