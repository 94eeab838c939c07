"""Weights of many places whose sums are kept, so that places can be drawn in proportion to them on any device."""

from __future__ import annotations

import torch
from torch import Tensor

WIDTH = 16
"""Children of a node. Few levels mean few operations, and a device needs one kernel for each."""


class SumTree:
    """``weight`` of each of ``count`` places, and the sums of groups of them, and of groups of groups up to all.

    No call looks at a value, so that a CUDA graph can hold it. Sums are made anew from their parts and never corrected
    by differences: they do not drift.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self._levels: list[Tensor] = []
        size = count
        while True:
            groups = -(-size // WIDTH)
            self._levels.append(torch.zeros(groups, WIDTH, dtype=torch.float64, device=device))
            if groups == 1:
                break
            size = groups
        self._count = count
        self._running = torch.ones(WIDTH, WIDTH, dtype=torch.float64, device=device).triu_()
        self._child = torch.arange(WIDTH, device=device)

    @property
    def weight(self) -> Tensor:
        return self._levels[0].view(-1)[: self._count]

    @property
    def total(self) -> Tensor:
        return self._levels[-1].sum()

    def set(self, place: Tensor, weight: Tensor) -> None:
        """New weights [K] of places [K]. A place that is named twice keeps one of its weights."""
        self._levels[0].view(-1)[place] = weight.to(torch.float64)
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            place = place // WIDTH
            above.view(-1)[place] = level[place].sum(-1)

    def fill(self, weight: Tensor) -> None:
        """All weights at once."""
        self.weight.copy_(weight)
        for level, above in zip(self._levels, self._levels[1:], strict=False):
            above.view(-1)[: len(level)] = level.sum(-1)

    def drawn(self, point: Tensor) -> Tensor:
        """The places [K] at which the weights, added up, pass the share ``point`` [K] of their total."""
        rest = point.to(torch.float64) * self.total
        node = torch.zeros_like(point, dtype=torch.int64)
        for level in reversed(self._levels):
            group = level[node]
            sums = group @ self._running
            # Rounding may lead beyond the last child that has a weight.
            last = torch.where(group > 0, self._child, 0).amax(-1)
            child = torch.minimum((sums <= rest.unsqueeze(-1)).sum(-1), last)
            chosen = child.unsqueeze(-1)
            # Never below zero by rounding: a place without weight could be chosen then.
            rest = (rest - (sums - group).gather(-1, chosen).squeeze(-1)).clamp(min=0)
            node = node * WIDTH + child
        return node
