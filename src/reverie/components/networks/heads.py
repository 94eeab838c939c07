"""Small networks that end in a distribution."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

from torch import Tensor, nn

from reverie.components.networks.distributions import Binary, TwoHot, symexp_bins
from reverie.components.networks.layers import Mlp, linear


class Scalar(Protocol):
    """A number that was predicted."""

    def mean(self) -> Tensor: ...

    def loss(self, target: Tensor, /) -> Tensor: ...


class ScalarHead(nn.Module, ABC):
    """Features [..., D] in, a prediction of one number for each out."""

    @abstractmethod
    def forward(self, feature: Tensor) -> Scalar: ...


class TwoHotHead(ScalarHead):
    """Predicts a scalar (reward, value). The zero output layer makes the first predictions exactly zero."""

    bins: Tensor

    def __init__(self, *, feature_dim: int, layers: int, units: int, bins: int = 255, outscale: float = 0.0) -> None:
        super().__init__()
        self.mlp = Mlp(feature_dim, layers=layers, units=units)
        self.output = linear(self.mlp.output_dim, bins, outscale=outscale)
        self.register_buffer("bins", symexp_bins(bins), persistent=False)

    def forward(self, feature: Tensor) -> TwoHot:
        return TwoHot(self.output(self.mlp(feature)), self.bins)


class BinaryHead(ScalarHead):
    """Predicts a probability (does the episode continue?)."""

    def __init__(self, *, feature_dim: int, layers: int, units: int, outscale: float = 1.0) -> None:
        super().__init__()
        self.mlp = Mlp(feature_dim, layers=layers, units=units)
        self.output = linear(self.mlp.output_dim, 1, outscale=outscale)

    def forward(self, feature: Tensor) -> Binary:
        return Binary(self.output(self.mlp(feature)).squeeze(-1))
