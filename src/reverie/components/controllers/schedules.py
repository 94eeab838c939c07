"""Numbers that change while an agent learns."""

from __future__ import annotations

from torch import Tensor

from reverie.types import require


class LinearSchedule:
    """From ``start`` to ``end`` in the first ``updates`` updates, and ``end`` from then on."""

    def __init__(self, *, start: float, end: float, updates: int) -> None:
        require("updates of a schedule", updates, at_least=1)
        self.start, self.end, self._updates = start, end, updates

    def __call__(self, done: Tensor) -> Tensor:
        """After as many updates, which are counted on the device: a captured graph would freeze a Python number."""
        share = (done.double() / self._updates).clamp(max=1.0)
        return (1 - share) * self.start + share * self.end
