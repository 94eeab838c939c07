"""The search of the first TD-MPC: what it believes moves slowly, and its smallest deviation follows a schedule."""

from __future__ import annotations

from torch import Tensor

from reverie.components.controllers.action_search import Belief, GaussianSearch
from reverie.components.controllers.schedules import LinearSchedule
from reverie.types import require


class MomentumSearch(GaussianSearch):
    """``momentum`` is the share of its mean that a belief keeps in each iteration; deviations have none."""

    def __init__(self, *, min_std: LinearSchedule, max_std: float = 2.0, momentum: float = 0.1) -> None:
        least = min(min_std.start, min_std.end)
        super().__init__(min_std=least, max_std=max_std)
        require("max_std of the search", max_std, at_least=max(min_std.start, min_std.end))
        require("momentum of the search", momentum, at_least=0, at_most=1)
        self._schedule, self._momentum = min_std, momentum

    def settled(self, before: Belief, learned: Belief, updates: Tensor) -> Belief:
        mean = learned.mean.lerp(before.mean, self._momentum)
        least = self._schedule(updates).to(learned.std.dtype)
        return Belief(mean, learned.std.clamp(min=least))
