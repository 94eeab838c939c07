"""Where tensors lie in one flat vector: each begins where memory is aligned, as if it had been made by itself.

What the compiler of torch makes for a parameter at an aligned address it takes again, unasked, for another one of the
same shape: in the next run too, out of its cache on the disk. If that one lay elsewhere, the kernel would end with a
misaligned address. So whether a parameter is aligned may not depend on what lies in front of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor

_STEP = 16
"""Numbers from one possible beginning to the next: 64 bytes of float32. A GPU reads 16 bytes at once."""

Piece = tuple[int, int]
"""Of a flat vector: where it begins and ends."""


class FlatLayout:
    def __init__(self, tensors: Sequence[Tensor]) -> None:
        lengths = [one.numel() for one in tensors]
        self._shapes = [one.shape for one in tensors]
        self.spans = [-(-length // _STEP) * _STEP for length in lengths]
        """Numbers of each tensor, and the zeros behind it."""
        ends = list(itertools.accumulate(self.spans, initial=0))
        self.size = ends.pop()
        """Of the whole vector."""
        self.pieces: list[Piece] = [(start, start + length) for start, length in zip(ends, lengths, strict=True)]
        between = zip(self.pieces, [*ends[1:], self.size], strict=True)
        self._gaps = [(stop, following) for (_, stop), following in between if stop < following]

    def places(self, flat: Tensor) -> list[Tensor]:
        """Views of ``flat``, one for each tensor."""
        shapes = zip(self.pieces, self._shapes, strict=True)
        return [flat[start:stop].view(shape) for (start, stop), shape in shapes]

    def joined(self, tensors: Sequence[Tensor]) -> Tensor:
        """A new vector of them, in a few kernels whatever their number."""
        flat = tensors[0].new_empty(self.size)
        if self._gaps:
            torch.ops.aten._foreach_zero_([flat[start:stop] for start, stop in self._gaps])
        torch.ops.aten._foreach_copy_(self.places(flat), [one.contiguous() for one in tensors])
        return flat
