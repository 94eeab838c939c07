"""The launch of ``weight_gradient_kernel.py``: tiles, how pixels are split among programs, and the sum over splits.

It can be captured in a CUDA graph: nothing is asked of the device. How work is divided depends on shapes alone, and
splits are summed in one order, so that the same numbers come out every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from reverie.components.networks.weight_gradient_kernel import weight_gradient_kernel

_PROCESSORS = 132
"""Of an H200. One program fills one."""
_MOST_ROUNDS = 4
"""In which all programs run: with more of them fewer processors wait at the end, but more splits must be summed."""
_NEARLY = 0.97
"""As good as the best. For less than that there are not to be more parts to sum."""
_LEAST_TURNS = 8
"""Of one program, so that there is something to read ahead."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiles:
    """What one program owns. What it reads for each product grows as 1 / terms + 1 / outputs, and reading is what it
    waits for; so tiles are as large as the registers that hold their sums.
    """

    terms: int
    outputs: int
    more_outputs: int = 0
    """Beside these, as widths are powers of two: 192 are 128 and 64."""
    pixels: int = 64
    """At a time."""
    warps: int = 8
    stages: int = 4
    """Of pixels in shared memory: one is multiplied while the next ones arrive."""


def chosen_tiles(outputs: int, dtype: torch.dtype) -> Tiles:
    """By how many columns stand idle; of equal ones the narrower, which leaves registers free."""
    if dtype.itemsize == 4:  # no matrix unit multiplies them exactly, and factors lie in registers too
        return Tiles(terms=64, outputs=32, pixels=32, warps=4, stages=2)
    if outputs > 128 and triton.cdiv(outputs, 192) * 192 < triton.cdiv(outputs, 128) * 128:
        return Tiles(terms=256, outputs=128, more_outputs=64, warps=16, stages=3)
    if outputs % 256 == 0:
        return Tiles(terms=128, outputs=256)
    return Tiles(terms=256, outputs=min(128, max(16, triton.next_power_of_2(outputs))))


def chosen_splits(tiles: int, pixel_tiles: int) -> int:
    """Of the pixels: the fewest that leave nearly the fewest processors idle in the last round of programs."""

    def share_at_work(splits: int) -> float:
        return splits * tiles / (triton.cdiv(splits * tiles, _PROCESSORS) * _PROCESSORS)

    most = min(_MOST_ROUNDS * _PROCESSORS // tiles, pixel_tiles // _LEAST_TURNS)
    shares = {splits: share_at_work(splits) for splits in range(1, max(1, most) + 1)}
    return next(splits for splits, share in shares.items() if share >= _NEARLY * max(shares.values()))


def weight_gradient(pictures: Tensor, gradient: Tensor, size: int, tiles: Tiles | None = None) -> Tensor:
    """[size, size, I, O] in float32, from [N, H, W, I] and [N, H, W, O] without gaps in memory."""
    _, height, width, inputs = pictures.shape
    outputs, count = gradient.shape[-1], gradient[..., 0].numel()
    tiles = tiles or chosen_tiles(outputs, pictures.dtype)
    columns = triton.cdiv(outputs, tiles.outputs + tiles.more_outputs)
    owned = triton.cdiv(size * size * inputs, tiles.terms) * columns
    pixel_tiles = triton.cdiv(count, tiles.pixels)
    turns = triton.cdiv(pixel_tiles, chosen_splits(owned, pixel_tiles))
    splits = triton.cdiv(pixel_tiles, turns)
    parts = torch.empty(splits, size, size, inputs, outputs, dtype=torch.float32, device=pictures.device)
    names = {"HEIGHT": height, "WIDTH": width, "I": inputs, "O": outputs, "SIZE": size}
    names |= {"BM": tiles.terms, "BN": tiles.outputs, "MORE": tiles.more_outputs, "BK": tiles.pixels, "TURNS": turns}
    names |= {"num_warps": tiles.warps, "num_stages": tiles.stages}
    arguments = pictures.contiguous(), gradient.contiguous(), parts, count
    _run(weight_gradient_kernel, owned * splits, *arguments, **names)
    return parts.sum(0)


def _run(kernel: Any, programs: int, *arguments: Any, **names: Any) -> None:
    kernel[(programs,)](*arguments, **names)
