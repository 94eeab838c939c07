"""Adds a row to rings in the memory of a GPU: one kernel gathers its fields, a recorded graph moves them to their slot.

The bytes cost the device nothing to speak of. What counts is the host, which pays for every view and every launch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from reverie.buffers.device_rows import DeviceRows
from reverie.runtime.capture import Captured
from reverie.types import Metrics


class DeviceAppend:
    """``position`` counts the rows of each stream, on the device. A call adds one row to every ring and counts it."""

    def __init__(self, rings: Sequence[DeviceRows], position: Tensor) -> None:
        self._rings, self._position = rings, position
        self._places = [place for ring in rings for place in ring.waiting]
        self._move: Callable[[], Metrics] = self._moved
        if position.is_cuda:
            self._move = Captured(self._moved, name="append", generators=lambda: ())

    def __call__(self, *fields: Mapping[str, Tensor]) -> None:
        """``fields`` of each ring in turn: [N, ...]."""
        parts = zip(self._rings, fields, strict=True)
        torch.ops.aten._foreach_copy_(self._places, [value for ring, part in parts for value in ring.as_bytes(part)])
        self._move()

    def _moved(self) -> Metrics:
        for ring in self._rings:
            ring.settle(self._position)
        self._position += 1
        return {}
