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
        self._low_quantile, self._high_quantile, self._rate = low_quantile, high_quantile, rate
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))
        self.register_buffer("before", torch.zeros(2), persistent=False)

    @torch.no_grad()
    def update(self, returns: Tensor) -> Tensor:
        """Take these returns into account, then give the scale."""
        self.get_buffer("before").copy_(torch.stack([self.low, self.high]))
        ordered = returns.flatten().sort().values
        self.low.lerp_(_quantile(ordered, self._low_quantile), self._rate)
        self.high.lerp_(_quantile(ordered, self._high_quantile), self._rate)
        return (self.high - self.low).clamp(min=1.0)

    @torch.no_grad()
    def take_back(self, *, where: Tensor) -> None:
        """Forget the last ``update`` where it belongs to an update of the agent that was skipped."""
        low, high = self.get_buffer("before")
        replace_where(where, [(self.low, low), (self.high, high)])


def _quantile(ordered: Tensor, share: float) -> Tensor:
    """By hand: torch's own looks at the values of its arguments, which neither the compiler nor a graph allows."""
    place = share * (len(ordered) - 1)
    below = int(place)
    return ordered[below].lerp(ordered[min(below + 1, len(ordered) - 1)], place - below)


class RunningRange(nn.Module):
    """Moving average of the distance of two percentiles, which counts as at least 1. Starts at 1."""

    value: Tensor

    def __init__(self, *, low_quantile: float = 0.05, high_quantile: float = 0.95, rate: float = 0.01) -> None:
        super().__init__()
        require("low_quantile of the range", low_quantile, at_least=0, at_most=1)
        require("high_quantile of the range", high_quantile, at_least=low_quantile, at_most=1)
        require("rate of the range", rate, at_least=0, at_most=1)
        self._low_quantile, self._high_quantile, self._rate = low_quantile, high_quantile, rate
        self.register_buffer("value", torch.ones(()))
        self.register_buffer("before", torch.ones(()), persistent=False)

    @torch.no_grad()
    def update(self, returns: Tensor) -> Tensor:
        """Take these returns into account, then give the scale."""
        self.get_buffer("before").copy_(self.value)
        ordered = returns.flatten().sort().values
        distance = _quantile(ordered, self._high_quantile) - _quantile(ordered, self._low_quantile)
        self.value.lerp_(distance.clamp(min=1.0), self._rate)
        return self.value.clone()

    @torch.no_grad()
    def take_back(self, *, where: Tensor) -> None:
        """Forget the last ``update`` where it belongs to an update of the agent that was skipped."""
        replace_where(where, [(self.value, self.get_buffer("before"))])
