"""Small tensors that travel together: one piece of memory on the host, one on the device, one copy between them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_ALIGNMENT = 64


class PackedTensors:
    """``on_host`` and ``on_device`` hold tensors like the examples, which stay where they are."""

    def __init__(self, examples: Mapping[str, Tensor], device: torch.device) -> None:
        self._layout: list[tuple[str, int, int, torch.dtype, torch.Size]] = []
        size = 0
        for name, value in examples.items():
            self._layout.append((name, size, size + value.nbytes, value.dtype, value.shape))
            size += -(-value.nbytes // _ALIGNMENT) * _ALIGNMENT
        # A device reads and writes pinned memory without the host's help.
        self._host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(size, dtype=torch.uint8, device=device)
        self.on_host, self.on_device = self._views(self._host), self._views(self._device)

    def send(self) -> None:
        """To the device, without waiting."""
        self._device.copy_(self._host, non_blocking=True)

    def receive(self, *, only_first: bool) -> None:
        """To the host, without waiting: all of them, or only the first."""
        end = self._layout[0][2] if only_first else len(self._host)
        self._host[:end].copy_(self._device[:end], non_blocking=True)

    def copy_on_device(self, user: torch.cuda.Stream | None) -> dict[str, Tensor]:
        """In memory of its own, which the stream ``user`` works with too."""
        fresh = self._device.clone()
        if user is not None:
            fresh.record_stream(user)
        return self._views(fresh)

    def copy_on_host(self) -> dict[str, Tensor]:
        return self._views(self._host.clone())

    def _views(self, packed: Tensor) -> dict[str, Tensor]:
        return {name: packed[start:stop].view(dtype).view(shape) for name, start, stop, dtype, shape in self._layout}
