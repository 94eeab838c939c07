"""Predictions of numbers that the published code offers beside those of its defaults: by a distance to the target."""

from __future__ import annotations

from torch import Tensor

from reverie.components.networks.distributions import OneHot, OneHots, SymlogMse, UnitNormal
from reverie.components.networks.heads import ScalarHead
from reverie.components.networks.layers import Mlp, linear
from reverie.components.networks.symlog import symlog
from reverie.components.networks.vectors import VectorDecoder


class Distance:
    """The squared distance, to the symlog of the target where ``form`` says so, or a smooth absolute one (huber)."""

    def __init__(self, prediction: Tensor, *, form: str = "mse") -> None:
        self._prediction, self._form = prediction.float(), form

    def mean(self) -> Tensor:
        """As it is: the reference does not undo the symlog here."""
        return self._prediction

    def loss(self, target: Tensor) -> Tensor:
        goal = symlog(target.float()) if self._form == "symlog_mse" else target.float()
        square = (self._prediction - goal).square()
        return (square + 1).sqrt() - 1 if self._form == "huber" else square


class DistanceHead(ScalarHead):
    def __init__(self, *, feature_dim: int, layers: int, units: int, form: str) -> None:
        super().__init__()
        self._form = form
        self.mlp = Mlp(feature_dim, layers=layers, units=units)
        self.output = linear(units, 1)

    def forward(self, feature: Tensor) -> Distance:
        return Distance(self.output(self.mlp(feature)).squeeze(-1), form=self._form)


class WholeSquare(UnitNormal):
    """The squared distance, where our own has half of it."""

    def loss(self, target: Tensor) -> Tensor:
        return 2 * super().loss(target)


class PlainVectorDecoder(VectorDecoder):
    """Numbers are predicted as they are, by the squared distance."""

    def forward(self, feature: Tensor) -> dict[str, OneHot | OneHots | SymlogMse | UnitNormal]:
        predictions = super().forward(feature)
        return {
            key: WholeSquare(one.mean(), is_vector=True) if isinstance(one, UnitNormal) else one
            for key, one in predictions.items()
        }
