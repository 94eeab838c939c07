"""In which numbers networks compute. Parameters, norms, losses and distributions are float32 in any case."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from reverie.types import ReverieError

PRECISIONS = ("auto", "float32", "bfloat16")


class Precision:
    """``auto`` is bfloat16 on a CUDA device and float32 elsewhere."""

    def __init__(self, name: str, device: torch.device) -> None:
        if name not in PRECISIONS:
            raise ReverieError(f"runtime.precision must be one of {', '.join(PRECISIONS)}, got '{name}'.")
        self._device = device.type
        self.is_lowered = name == "bfloat16" or (name == "auto" and device.type == "cuda")

    @property
    def dtype(self) -> torch.dtype:
        """Of what matrix products read."""
        return torch.bfloat16 if self.is_lowered else torch.float32

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Matrix products and convolutions inside compute in this precision.

        With gradients, each weight is converted once, at its first use. Entries do not nest.
        """
        if not self.is_lowered:
            yield
            return
        with torch.autocast(self._device, dtype=torch.bfloat16):
            yield


FULL_PRECISION = Precision("float32", torch.device("cpu"))
