"""The range of returns, remembered: advantages are divided by it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from reverie.runtime.finite import replace_where
from reverie.types import require


@runtime_checkable
class Scale(Protocol):
    """What returns and advantages are divided by."""

    def update(self, returns: Tensor) -> Tensor: ...

    def take_back(self, *, where: Tensor) -> None: ...


class UnitScale:
    """Leaves returns as they are."""

    def update(self, returns: Tensor) -> Tensor:
        return torch.ones((), device=returns.device)

    def take_back(self, *, where: Tensor) -> None:
        """Nothing is remembered."""


class ReturnScale(nn.Module):
    """Moving average of two percentiles of the returns. Starts at zero, is not debiased, and never falls below 1."""

    low: Tensor
    high: Tensor

    def __init__(self, *, low_quantile: float = 0.05, high_quantile: float = 0.95, rate: float = 0.01) -> None:
        super().__init__()
        require("low_quantile of the return scale", low_quantile, at_least=0, at_most=1)
        require("high_quantile of the return scale", high_quantile, at_least=low_quantile, at_most=1)
        require("rate of the return scale", rate, at_least=0, at_most=1)
        self._rate = rate
        self.register_buffer("quantiles", torch.tensor([low_quantile, high_quantile]))
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))
        self.register_buffer("before", torch.zeros(2), persistent=False)

    @torch.no_grad()
    def update(self, returns: Tensor) -> Tensor:
        """Take these returns into account, then give the scale."""
        self.get_buffer("before").copy_(torch.stack([self.low, self.high]))
        low, high = torch.quantile(returns.flatten(), self.get_buffer("quantiles"))
        self.low.lerp_(low, self._rate)
        self.high.lerp_(high, self._rate)
        return (self.high - self.low).clamp(min=1.0)

    @torch.no_grad()
    def take_back(self, *, where: Tensor) -> None:
        """Forget the last ``update`` where it belongs to an update of the agent that was skipped."""
        low, high = self.get_buffer("before")
        replace_where(where, [(self.low, low), (self.high, high)])
