"""The actor's network: features in, a distribution over the actions of any space out."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.action_distributions import TanhNormal, TruncatedNormal
from reverie.components.networks.distributions import Normal, OneHot, OneHots
from reverie.components.networks.layers import Activation, Fan, Mlp, Norm, fan_beside, linear
from reverie.components.networks.one_hot import one_hot
from reverie.types import ReverieError, Space, require


class Choice(Protocol):
    """Actions are as the environment takes them: class indices, or unclipped numbers."""

    def sample(self, rng: Generator | None) -> Tensor:
        """The most likely action when ``rng`` is None. Numbers carry gradients to the policy."""
        ...


@runtime_checkable
class Actor(Protocol):
    """Whatever can act on features."""

    space: Space

    def __call__(self, feature: Tensor, /) -> Choice: ...

    def vector(self, action: Tensor) -> Tensor:
        """The action as numbers that a network can read: one-hots, or itself. Without gradients to the policy."""
        ...


class ActionDistribution(Choice, Protocol):
    """What an actor says that learns."""

    def drawn(self, noise: Tensor | None, /) -> Tensor:
        """``sample`` with the noise of its actor, drawn before; the most likely action at None."""
        ...

    def vector(self, action: Tensor, /) -> Tensor:
        """The action as numbers that a network can read, with gradients to the policy (straight through one-hots)."""
        ...

    def log_prob(self, action: Tensor, /) -> Tensor: ...

    def entropy(self) -> Tensor: ...


class ContinuousOutput(Protocol):
    """The last layer of an actor on vectors of numbers."""

    has_normal_noise: ClassVar[bool]
    """Whether its actions are drawn with standard normal noise; else with uniform noise. One number each."""

    def __call__(self, hidden: Tensor, /) -> ActionDistribution: ...


class NormalOutput(nn.Module):
    """mean = tanh(x), stddev between two bounds and near the upper one at first. Samples are not bounded, unless
    ``is_scaled_back`` divides those beyond -1 or 1 by their size.
    """

    has_normal_noise: ClassVar[bool] = True

    def __init__(
        self,
        units: int,
        dim: int,
        *,
        outscale: float,
        fan: Fan = "in",
        min_stddev: float = 0.1,
        max_stddev: float = 1.0,
        is_scaled_back: bool = False,
    ) -> None:
        super().__init__()
        require("min_stddev of a head", min_stddev, at_least=0)
        require("max_stddev of a head", max_stddev, at_least=min_stddev)
        self._min_stddev, self._max_stddev = min_stddev, max_stddev
        self._is_scaled_back = is_scaled_back
        self.mean = linear(units, dim, outscale=outscale, fan=fan)
        self.stddev = linear(units, dim, outscale=outscale, fan=fan)

    def forward(self, hidden: Tensor) -> Normal:
        share = (self.stddev(hidden).float() + 2).sigmoid()
        stddev = (self._max_stddev - self._min_stddev) * share + self._min_stddev
        return Normal(torch.tanh(self.mean(hidden).float()), stddev, is_scaled_back=self._is_scaled_back)


class TanhNormalOutput(nn.Module):
    """mean = ``mean_scale`` * tanh(x / ``mean_scale``), stddev = softplus(x) that begins at ``init_stddev``."""

    has_normal_noise: ClassVar[bool] = True

    def __init__(
        self,
        units: int,
        dim: int,
        *,
        outscale: float,
        fan: Fan = "in",
        mean_scale: float = 5.0,
        init_stddev: float = 5.0,
        min_stddev: float = 1e-4,
    ) -> None:
        super().__init__()
        require("mean_scale of a head", mean_scale, at_least=1e-3)
        require("init_stddev of a head", init_stddev, at_least=1e-3)
        require("min_stddev of a head", min_stddev, at_least=0)
        self._mean_scale, self._min_stddev = mean_scale, min_stddev
        self._raw_init = float(torch.tensor(init_stddev, dtype=torch.float64).expm1().log())
        self.mean = linear(units, dim, outscale=outscale, fan=fan)
        self.stddev = linear(units, dim, outscale=outscale, fan=fan)

    def forward(self, hidden: Tensor) -> TanhNormal:
        mean = self._mean_scale * torch.tanh(self.mean(hidden).float() / self._mean_scale)
        return TanhNormal(mean, F.softplus(self.stddev(hidden).float() + self._raw_init) + self._min_stddev)


class TruncatedNormalOutput(nn.Module):
    """mean = tanh(x), stddev = 2 * sigmoid(x / 2) + ``min_stddev``, cut off at -1 and 1."""

    has_normal_noise: ClassVar[bool] = False

    def __init__(self, units: int, dim: int, *, outscale: float, fan: Fan = "in", min_stddev: float = 0.1) -> None:
        super().__init__()
        require("min_stddev of a head", min_stddev, at_least=1e-3)
        self._min_stddev = min_stddev
        self.mean = linear(units, dim, outscale=outscale, fan=fan)
        self.stddev = linear(units, dim, outscale=outscale, fan=fan)

    def forward(self, hidden: Tensor) -> TruncatedNormal:
        stddev = 2 * (self.stddev(hidden).float() / 2).sigmoid() + self._min_stddev
        return TruncatedNormal(torch.tanh(self.mean(hidden).float()), stddev)


class DiscreteOutput(nn.Module):
    def __init__(self, units: int, classes: int | tuple[int, ...], *, outscale: float, fan: Fan, unimix: float) -> None:
        super().__init__()
        self._classes, self._unimix = classes, unimix
        dim = classes if isinstance(classes, int) else sum(classes)
        self.logits = linear(units, dim, outscale=outscale, fan=fan)

    def forward(self, hidden: Tensor) -> OneHot | OneHots:
        logits = self.logits(hidden)
        if isinstance(self._classes, int):
            return OneHot(logits, unimix=self._unimix)
        return OneHots(logits, self._classes, unimix=self._unimix)


class ActionHead(nn.Module):
    """An actor for the actions of ``space``: one class, independent classes side by side, or vectors of numbers.

    ``unimix`` mixes discrete policies with the uniform one; ``continuous`` makes the last layer for numbers.
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
        norm: Norm = "rms",
        activation: Activation = "silu",
        continuous: Callable[..., ContinuousOutput] = NormalOutput,
    ) -> None:
        super().__init__()
        require("unimix of a head", unimix, at_least=0, at_most=1)
        self.space = space
        self._has_normal_noise, self._noise_dim = False, 1
        self.mlp = Mlp(feature_dim, layers=layers, units=units, norm=norm, activation=activation)
        fan = fan_beside(norm)
        self.output: DiscreteOutput | ContinuousOutput
        if space.classes is not None:
            self.output = DiscreteOutput(units, space.classes, outscale=outscale, fan=fan, unimix=unimix)
            self._noise_dim = 1 if isinstance(space.classes, int) else len(space.classes)
        elif len(space.shape) == 1:
            self.output = continuous(units, space.dim, outscale=outscale, fan=fan)
            self._has_normal_noise, self._noise_dim = self.output.has_normal_noise, space.dim
        else:
            raise ReverieError(f"a continuous action must be a vector, but the task's has shape {space.shape}.")

    def forward(self, feature: Tensor) -> ActionDistribution:
        return self.output(self.mlp(feature))

    def noise(self, shape: tuple[int, ...], rng: Generator) -> Tensor:
        """What actions of this leading shape are drawn with."""
        draw = torch.randn if self._has_normal_noise else torch.rand
        return draw(*shape, self._noise_dim, device=rng.device, generator=rng)

    def vector(self, action: Tensor) -> Tensor:
        """The action as numbers that a network can read: one-hots, or itself. Without gradients to the policy."""
        return action if self.space.classes is None else one_hot(action, self.space.classes)
