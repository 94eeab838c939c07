"""The actor's network: features in, a distribution over the actions of any space out."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Generator, Tensor, nn

from reverie.components.networks.distributions import Normal, OneHot, OneHots
from reverie.components.networks.layers import Mlp, linear
from reverie.components.networks.one_hot import one_hot
from reverie.types import ReverieError, Space, require


class ActionDistribution(Protocol):
    """What an actor says. Actions are as the environment takes them: class indices, or unclipped numbers."""

    def sample(self, rng: Generator | None) -> Tensor:
        """The most likely action when ``rng`` is None."""
        ...

    def log_prob(self, action: Tensor, /) -> Tensor: ...

    def entropy(self) -> Tensor: ...


class ActionHead(nn.Module):
    """An actor for the actions of ``space``: one class, independent classes side by side, or bounded normals.

    ``unimix`` mixes discrete policies with the uniform one; ``min_stddev`` and ``max_stddev`` bound the continuous.
    """

    def __init__(
        self,
        *,
        space: Space,
        feature_dim: int,
        layers: int,
        units: int,
        outscale: float = 0.01,
        unimix: float = 0.0,
        min_stddev: float = 0.1,
        max_stddev: float = 1.0,
    ) -> None:
        super().__init__()
        require("unimix of a head", unimix, at_least=0, at_most=1)
        require("min_stddev of a head", min_stddev, at_least=0)
        require("max_stddev of a head", max_stddev, at_least=min_stddev)
        self.space = space
        self.mlp = Mlp(feature_dim, layers=layers, units=units)
        self.output: DiscreteOutput | NormalOutput
        if space.classes is not None:
            self.output = DiscreteOutput(units, space.classes, outscale=outscale, unimix=unimix)
        elif len(space.shape) == 1:
            self.output = NormalOutput(units, space.dim, outscale=outscale, stddevs=(min_stddev, max_stddev))
        else:
            raise ReverieError(f"a continuous action must be a vector, but the task's has shape {space.shape}.")

    def forward(self, feature: Tensor) -> ActionDistribution:
        return self.output(self.mlp(feature))

    def vector(self, action: Tensor) -> Tensor:
        """The action as numbers that a network can read: one-hots, or itself."""
        return action if self.space.classes is None else one_hot(action, self.space.classes)


class DiscreteOutput(nn.Module):
    def __init__(self, units: int, classes: int | tuple[int, ...], *, outscale: float, unimix: float) -> None:
        super().__init__()
        self._classes, self._unimix = classes, unimix
        self.logits = linear(units, classes if isinstance(classes, int) else sum(classes), outscale=outscale)

    def forward(self, hidden: Tensor) -> OneHot | OneHots:
        logits = self.logits(hidden)
        if isinstance(self._classes, int):
            return OneHot(logits, unimix=self._unimix)
        return OneHots(logits, self._classes, unimix=self._unimix)


class NormalOutput(nn.Module):
    """mean = tanh(x), stddev between two bounds and near the upper one at first."""

    def __init__(self, units: int, dim: int, *, outscale: float, stddevs: tuple[float, float]) -> None:
        super().__init__()
        self._min_stddev, self._max_stddev = stddevs
        self.mean = linear(units, dim, outscale=outscale)
        self.stddev = linear(units, dim, outscale=outscale)

    def forward(self, hidden: Tensor) -> Normal:
        share = (self.stddev(hidden).float() + 2).sigmoid()
        stddev = (self._max_stddev - self._min_stddev) * share + self._min_stddev
        return Normal(torch.tanh(self.mean(hidden).float()), stddev)
