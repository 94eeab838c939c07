"""In which form a network predicts one number: over bins, or as it is, or squashed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor, nn

from reverie.components.networks.distributions import SymlogTwoHot, full_product
from reverie.components.networks.symlog import symexp, symlog
from reverie.types import ReverieError, require


class PredictedNumber(Protocol):
    def mean(self) -> Tensor: ...

    def loss(self, target: Tensor, /) -> Tensor: ...


class NumberForm(nn.Module, ABC):
    """Outputs of a network [..., width] in, a prediction of one number for each out."""

    width: int
    """How many outputs one number takes."""

    @abstractmethod
    def forward(self, output: Tensor) -> PredictedNumber: ...


class TwoHotForm(NumberForm):
    """``bins`` of equal width in symlog space from ``low`` to ``high``; targets beyond count as the nearest end."""

    bins: Tensor

    def __init__(self, *, bins: int = 101, low: float = -10.0, high: float = 10.0) -> None:
        super().__init__()
        require("bins of a prediction", bins, at_least=2)
        if not low < high:
            raise ReverieError(f"the bins of a prediction need low < high, got {low} and {high}.")
        self.width = bins
        self.register_buffer("bins", torch.linspace(low, high, bins), persistent=False)

    def forward(self, output: Tensor) -> _Binned:
        return _Binned(output.float(), self.bins)


class _Binned:
    def __init__(self, output: Tensor, bins: Tensor) -> None:
        self._output, self._bins = output, bins

    def mean(self) -> Tensor:
        return symexp(full_product(self._output.softmax(-1), self._bins))

    def loss(self, target: Tensor) -> Tensor:
        return SymlogTwoHot(self._output, self._bins).loss(target)


class PlainForm(NumberForm):
    """The number itself, trained by its squared error."""

    width = 1

    def forward(self, output: Tensor) -> _Squared:
        return _Squared(output.squeeze(-1).float(), is_squashed=False)


class SymlogForm(NumberForm):
    """The number in symlog space, trained by its squared error there."""

    width = 1

    def forward(self, output: Tensor) -> _Squared:
        return _Squared(output.squeeze(-1).float(), is_squashed=True)


class _Squared:
    def __init__(self, output: Tensor, *, is_squashed: bool) -> None:
        self._output, self._is_squashed = output, is_squashed

    def mean(self) -> Tensor:
        return symexp(self._output) if self._is_squashed else self._output

    def loss(self, target: Tensor) -> Tensor:
        return (self._output - (symlog(target) if self._is_squashed else target)).square()
