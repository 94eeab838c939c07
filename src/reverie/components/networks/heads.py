"""Small networks that read a latent and predict one number (reward, value, whether the episode continues)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from reverie.components.networks.distributions import (
    Binary,
    Fixed,
    SymlogTwoHot,
    TwoHot,
    UnitNormal,
    symexp_bins,
    symlog_bins,
)
from reverie.components.networks.layers import Activation, Mlp, Norm, aligned, fan_beside, linear
from reverie.types import require


class Scalar(Protocol):
    """A number that was predicted."""

    def mean(self) -> Tensor: ...

    def loss(self, target: Tensor, /) -> Tensor: ...


class ScalarHead(nn.Module, ABC):
    """Features [..., D] in, a prediction of one number for each out."""

    @abstractmethod
    def forward(self, feature: Tensor) -> Scalar: ...


class TwoHotHead(ScalarHead):
    """Bins that grow exponentially. The zero output layer makes the first predictions exactly zero."""

    bins: Tensor

    def __init__(
        self,
        *,
        feature_dim: int,
        layers: int,
        units: int,
        bins: int = 255,
        outscale: float = 0.0,
        norm: Norm = "rms",
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self.mlp = Mlp(feature_dim, layers=layers, units=units, norm=norm, activation=activation)
        self.output = linear(units, bins, outscale=outscale, fan=fan_beside(norm))
        self.register_buffer("bins", symexp_bins(bins), persistent=False)

    def forward(self, feature: Tensor) -> TwoHot:
        return TwoHot(aligned(self.output, self.mlp(feature)), self.bins)


class SymlogTwoHotHead(ScalarHead):
    """Bins of equal width in symlog space, as in the 2023 form of DreamerV3."""

    bins: Tensor

    def __init__(
        self,
        *,
        feature_dim: int,
        layers: int,
        units: int,
        bins: int = 255,
        outscale: float = 0.0,
        norm: Norm = "rms",
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self.mlp = Mlp(feature_dim, layers=layers, units=units, norm=norm, activation=activation)
        self.output = linear(units, bins, outscale=outscale, fan=fan_beside(norm))
        self.register_buffer("bins", symlog_bins(bins), persistent=False)

    def forward(self, feature: Tensor) -> SymlogTwoHot:
        return SymlogTwoHot(aligned(self.output, self.mlp(feature)), self.bins)


class NormalHead(ScalarHead):
    """The mean of a normal with deviation 1, as in DreamerV1 and DreamerV2: half the squared error is the loss."""

    def __init__(
        self,
        *,
        feature_dim: int,
        layers: int,
        units: int,
        outscale: float = 1.0,
        norm: Norm = "rms",
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self.mlp = Mlp(feature_dim, layers=layers, units=units, norm=norm, activation=activation)
        self.output = linear(units, 1, outscale=outscale, fan=fan_beside(norm))

    def forward(self, feature: Tensor) -> UnitNormal:
        return UnitNormal(self.output(self.mlp(feature)).squeeze(-1), is_vector=False)


class BinaryHead(ScalarHead):
    """A probability (does the episode continue?)."""

    def __init__(
        self,
        *,
        feature_dim: int,
        layers: int,
        units: int,
        outscale: float = 1.0,
        norm: Norm = "rms",
        activation: Activation = "silu",
    ) -> None:
        super().__init__()
        self.mlp = Mlp(feature_dim, layers=layers, units=units, norm=norm, activation=activation)
        self.output = linear(units, 1, outscale=outscale, fan=fan_beside(norm))

    def forward(self, feature: Tensor) -> Binary:
        return Binary(self.output(self.mlp(feature)).squeeze(-1))


class FixedContinue(ScalarHead):
    """For tasks that never end: every state continues with gamma = 1 - 1 / ``discount_horizon``. Learns nothing."""

    def __init__(self, *, discount_horizon: int) -> None:
        super().__init__()
        require("discount_horizon of the continue head", discount_horizon, at_least=2)
        self._gamma = 1 - 1 / discount_horizon

    def forward(self, feature: Tensor) -> Fixed:
        return Fixed(feature.new_full(feature.shape[:-1], self._gamma, dtype=torch.float32))
