"""How much each window is worth to a sampler that prefers some of them."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.buffers.sum_tree import SumTree
from reverie.buffers.windows import Windows
from reverie.types import RowIndex, State

_LEAST = 1e-6
"""No window is lost for ever because it was once learned by heart."""


class Priorities:
    """Weights of the windows of one length: priority ** ``exponent``. New ones get the highest priority so far."""

    def __init__(
        self, windows: Windows, *, length: int, num_streams: int, stream_length: int, exponent: float, position: Tensor
    ) -> None:
        device = position.device
        self._windows, self._length, self._exponent = windows, length, exponent
        self._stream_length = stream_length
        self._first_slot = torch.arange(num_streams, device=device) * stream_length
        self._tree = SumTree(num_streams * stream_length, device)
        self._highest = torch.ones((), dtype=torch.float64, device=device)
        first, count = windows.span(position)
        stream, start = windows.place(torch.arange(int(first), int(first + count), device=device))
        weight = torch.zeros_like(self._tree.weight)
        weight[stream * stream_length + start % stream_length] = 1.0
        self._tree.fill(weight)

    def append(self, row: Tensor) -> None:
        """A row has come, and ``windows`` know it: what it overwrote starts no window, what it completed does."""
        gone = self._first_slot + row % self._stream_length
        new = self._first_slot + (row - self._length + 1) % self._stream_length
        self._tree.set(gone, torch.zeros_like(gone))
        weight = torch.where(self._windows.ended(row), self._weight(self._highest), 0.0)
        self._tree.set(new, weight)

    def drawn(self, share: Tensor) -> tuple[Tensor, Tensor]:
        """(stream, slot of the first row) of windows, drawn with uniform numbers ``share``."""
        place = self._tree.drawn(share)
        return place // self._stream_length, place % self._stream_length

    def assign(self, index: RowIndex, priority: Tensor) -> None:
        """Priorities [B] of the windows at ``index``. What is no number counts as the highest: it was not learned."""
        priority = priority.detach().to(torch.float64)
        priority = torch.where(priority.isfinite(), priority, self._highest).clamp(min=_LEAST)
        torch.maximum(self._highest, priority.amax(), out=self._highest)
        self._tree.set(
            index.stream * self._stream_length + index.row[:, 0] % self._stream_length, self._weight(priority)
        )

    def odds(self, index: RowIndex, position: Tensor) -> Tensor:
        """How much likelier each window [B] is drawn than if all that there are had the same chance."""
        place = index.stream * self._stream_length + index.row[:, 0] % self._stream_length
        return self._tree.weight[place] * self._windows.span(position)[1] / self._tree.total

    def get_state(self) -> State:
        return {"weight": self._tree.weight.clone(), "highest": self._highest.clone()}

    def set_state(self, state: State) -> None:
        self._tree.fill(state["weight"].to(self._highest.device))
        self._highest.copy_(state["highest"])

    def _weight(self, priority: Tensor) -> Tensor:
        return priority.pow(self._exponent)
