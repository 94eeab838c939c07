"""Continuous policies that end at the borders -1 and 1: a normal behind a tanh, and a truncated normal.

Samples are differentiable functions of the parameters.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from reverie.components.networks.distributions import Normal, standard_normal

_EDGE = 1e-6
"""Actions closer than this to a border have no finite log-probability."""
_NODES, _QUANTILES = 32, 100


class TanhNormal:
    """tanh of independent normals over the last axis."""

    def __init__(self, mean: Tensor, stddev: Tensor) -> None:
        self.normal = Normal(mean, stddev)

    def sample(self, rng: Generator | None) -> Tensor:
        """The most likely of a hundred quantiles of each dimension when ``rng`` is None: the mode has no formula."""
        return self.drawn(None if rng is None else standard_normal(self.normal.mean, rng))

    def drawn(self, noise: Tensor | None) -> Tensor:
        """``sample`` with standard normal ``noise`` that was drawn before."""
        if noise is not None:
            return self.normal.drawn(noise).tanh()
        mean, stddev = self.normal.mean.unsqueeze(-1), self.normal.stddev.unsqueeze(-1)
        points = mean + stddev * _quantiles(mean.device)
        density = -((points - mean) / stddev).square() / 2 - _log_slope(points)
        return points.gather(-1, density.argmax(-1, keepdim=True)).squeeze(-1).tanh()

    def vector(self, action: Tensor) -> Tensor:
        return action

    def log_prob(self, action: Tensor) -> Tensor:
        before = action.clamp(-1 + _EDGE, 1 - _EDGE).atanh()
        return self.normal.log_prob(before) - _log_slope(before).sum(-1)

    def entropy(self) -> Tensor:
        """That of the normals plus the expected log-slope of the tanh, by Gauss-Hermite quadrature."""
        nodes, weights = _hermite(self.normal.mean.device)
        points = self.normal.mean.unsqueeze(-1) + self.normal.stddev.unsqueeze(-1) * nodes
        return self.normal.entropy() + (_log_slope(points) * weights).sum((-2, -1))


class TruncatedNormal:
    """Independent normals over the last axis whose mass outside [-1, 1] is cut off. ``mean`` lies inside."""

    def __init__(self, mean: Tensor, stddev: Tensor) -> None:
        self.normal = Normal(mean, stddev)
        mean, stddev = self.normal.mean, self.normal.stddev
        self._low, self._high = (-1 - mean) / stddev, (1 - mean) / stddev
        self._below = torch.special.ndtr(self._low)
        self._mass = torch.special.ndtr(self._high) - self._below

    def sample(self, rng: Generator | None) -> Tensor:
        """The mean, which is the most likely value, when ``rng`` is None."""
        mean = self.normal.mean
        return self.drawn(None if rng is None else torch.rand(mean.shape, device=mean.device, generator=rng))

    def drawn(self, noise: Tensor | None) -> Tensor:
        """``sample`` with uniform ``noise`` that was drawn before."""
        mean, stddev = self.normal.mean, self.normal.stddev
        if noise is None:
            return mean
        # Rounding may reach 0 or 1, whose quantiles are infinite.
        point = (self._below + noise * self._mass).clamp(_EDGE / 10, 1 - _EDGE / 10)
        value = mean + stddev * torch.special.ndtri(point)
        # What rounding leads beyond the border is brought back, and keeps its gradient.
        return value + (value.detach().clamp(-1 + _EDGE, 1 - _EDGE) - value.detach())

    def vector(self, action: Tensor) -> Tensor:
        return action

    def log_prob(self, action: Tensor) -> Tensor:
        return self.normal.log_prob(action) - self._mass.log().sum(-1)

    def entropy(self) -> Tensor:
        lost = self._low * _density(self._low) - self._high * _density(self._high)
        return self.normal.entropy() + (self._mass.log() + lost / (2 * self._mass)).sum(-1)


def _log_slope(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2), finite for every x."""
    return 2 * (math.log(2) - x - F.softplus(-2 * x))


def _density(x: Tensor) -> Tensor:
    """Of the standard normal."""
    return (-x.square() / 2).exp() / math.sqrt(2 * math.pi)


@torch.compiler.assume_constant_result
def _hermite(device: torch.device) -> tuple[Tensor, Tensor]:
    """Nodes and weights for expectations under the standard normal. The compiler cannot look into numpy."""
    return _hermite_on(device)


@cache
def _hermite_on(device: torch.device) -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return torch.tensor(nodes, dtype=torch.float32, device=device), torch.tensor(
        weights / math.sqrt(2 * math.pi), dtype=torch.float32, device=device
    )


@cache
def _quantiles(device: torch.device) -> Tensor:
    """Of the standard normal, at the middles of a hundred equal shares."""
    return torch.special.ndtri((torch.arange(_QUANTILES, device=device) + 0.5) / _QUANTILES)
