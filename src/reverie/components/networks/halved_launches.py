"""Launches of the kernels of ``halved_kernels.py``: how many programs, of which sizes, and the sums of what they leave.

All can be captured in a CUDA graph: nothing is asked of the device. All sums have one order, and how work is divided
depends on shapes alone, so that the same numbers come out every time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from reverie.components.networks.halved_kernels import (
    halved_kernel,
    largest_gradient_kernel,
    weights_gradient_kernel,
)

_CHANNELS, _WIDE_CHANNELS = 32, 8
"""Of the result, in one program that makes the weights' gradient: it keeps four times these sums in registers. Fewer
where products are float32, which no matrix unit makes: their factors are kept in registers too."""
_PROGRAMS = 264
"""That share the pixels when the weights' gradient is made: two for each processor of an H200."""
_NUMBERS = 8192
"""Of the map in one program that makes its gradient."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Sizes:
    """Of one layer; ``reach`` is the side of a patch."""

    count: int
    height: int
    width: int
    channels: int
    reach: int
    outputs: int
    dtype: torch.dtype

    @property
    def is_narrow(self) -> bool:
        return self.dtype.itemsize < 4

    @property
    def inner(self) -> int:
        return self.reach**2 * self.channels

    @property
    def names(self) -> dict[str, Any]:
        """Those that all kernels which read patches are compiled for."""
        own = {"HEIGHT": self.height, "WIDTH": self.width, "C": self.channels, "D": self.reach, "O": self.outputs}
        return {**own, "KP": _filled_up(self.inner), "num_warps": 8, "num_stages": 3}


def halved(pictures: Tensor, weights: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Activated, largest and winner [N, H, W, O], from pictures with their border and weights [4, D, D * C, O]."""
    sizes = _sizes(pictures, weights)
    shape = len(pictures), sizes.height, sizes.width, sizes.outputs
    activated, largest = (pictures.new_empty(shape) for _ in range(2))
    winner = pictures.new_empty(shape, dtype=torch.int8)
    wide = _filled_up(sizes.outputs)
    rows = _rows(sizes, wide)
    arguments = pictures.contiguous(), weights.to(sizes.dtype).contiguous(), bias, scale, largest, winner, activated
    _run(halved_kernel, (triton.cdiv(sizes.count, rows), 1), *arguments, sizes.count, **sizes.names, OP=wide, BM=rows)
    return activated, largest, winner


def _rows(sizes: _Sizes, wide: int) -> int:
    """Pixels of one program. Beside the weights of three corners they fit into its memory, and sums into registers."""
    if not sizes.is_narrow:
        return 32
    return 128 if _filled_up(sizes.inner) * wide <= 128 * 128 else 64


def halved_gradients(
    gradient: Tensor,
    pictures: Tensor,
    weights: Tensor,
    scale: Tensor,
    largest: Tensor,
    winner: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Of weights, bias and scale, in float32."""
    sizes = _sizes(pictures, weights)
    to_largest, to_scale, to_bias = _through_norm(gradient.contiguous(), largest, scale, sizes)
    tile = min(_filled_up(sizes.outputs), _CHANNELS if sizes.is_narrow else _WIDE_CHANNELS)
    tiles = triton.cdiv(sizes.outputs, tile)
    rows = 64 if sizes.is_narrow else 32
    turns = triton.cdiv(triton.cdiv(sizes.count, rows), max(1, _PROGRAMS // tiles))
    shares = triton.cdiv(sizes.count, rows * turns)
    parts = torch.empty(shares, *weights.shape, dtype=torch.float32, device=pictures.device)
    arguments = pictures.contiguous(), to_largest, winner, parts, sizes.count
    _run(weights_gradient_kernel, (shares, tiles), *arguments, **sizes.names, OT=tile, BM=rows, TURNS=turns)
    return parts.sum(0), to_bias, to_scale


def _through_norm(gradient: Tensor, largest: Tensor, scale: Tensor, sizes: _Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Of the largest corner, of scale and of bias."""
    wide = _filled_up(sizes.outputs)
    rows = max(1, _NUMBERS // wide)
    programs = triton.cdiv(sizes.count, rows)
    parts = torch.empty(programs, 2, sizes.outputs, dtype=torch.float32, device=largest.device)
    to_largest = torch.empty_like(largest)
    arguments = gradient, largest, scale, to_largest, parts, sizes.count
    _run(largest_gradient_kernel, (programs, 1), *arguments, O=sizes.outputs, OP=wide, BM=rows, num_warps=8)
    to_scale, to_bias = parts.sum(0).unbind(0)
    return to_largest, to_scale.clone(), to_bias.clone()  # an operation of one's own may not return two views


def _sizes(pictures: Tensor, weights: Tensor) -> _Sizes:
    batch, height, width, channels = pictures.shape
    _, reach, _, outputs = weights.shape
    # The border around a picture is as wide as a patch without one square.
    height, width = (height - reach + 2) // 2, (width - reach + 2) // 2
    return _Sizes(
        count=batch * height * width,
        height=height,
        width=width,
        channels=channels,
        reach=reach,
        outputs=outputs,
        dtype=pictures.dtype,
    )


def _filled_up(size: int) -> int:
    """Matrix units take no fewer than 16."""
    return max(16, triton.next_power_of_2(size))


def _run(kernel: Any, grid: tuple[int, int], *arguments: Any, **names: Any) -> None:
    kernel[grid](*arguments, **names)
