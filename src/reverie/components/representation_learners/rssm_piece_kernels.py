"""The kernels of DreamerV3's walk that add up what others left in pieces: one on the way there, one on the way back.

A layer behind such a sum needs all of it, and no program can wait for the others: so this is another launch.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import await_earlier
from reverie.components.representation_learners.rssm_kernel_parts import (
    constexpr,
    store_slope,
    store_with_squares,
    tensor,
    tl,
)


@triton.jit
def whole_kernel(
    pieces: tensor,
    added: tensor,
    whole: tensor,
    parts: tensor,
    batch: tensor,
    ADDED_STRIDE: constexpr,
    STRIDE: constexpr,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    BM: constexpr,
    BH: constexpr,
    T: constexpr,
    OVERLAP: constexpr,
) -> None:
    """Pieces of a sum over ``deter``, and what is added to it: in rows of ``ADDED_STRIDE``, a bias in none."""
    await_earlier(OVERLAP)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BH + tl.arange(0, BH)
    mask = (rows[:, None] < batch) & (cols[None, :] < H)
    place = rows[:, None] * ADDED_STRIDE + cols[None, :]
    total = tl.load(added + place, mask=mask, other=0.0).to(tl.float32)
    total += piece_sum(pieces, rows[:, None] * H + cols[None, :], mask, batch, triton.cdiv(G * OWN, T), H)
    at = rows[:, None] * STRIDE + cols[None, :]
    store_with_squares(whole, at, total, mask, parts + tl.program_id(1) * batch, rows, batch)


@triton.jit
def shared_slope_kernel(
    pieces: tensor,
    reads: tensor,
    inverse: tensor,
    scales: tensor,
    slope: tensor,
    parts: tensor,
    batch: tensor,
    G: constexpr,
    H: constexpr,
    BM: constexpr,
    BH: constexpr,
    OVERLAP: constexpr,
) -> None:
    """Pieces from all blocks, to what read the old ``deter`` and ``stoch`` for them."""
    await_earlier(OVERLAP)
    tiles: constexpr = triton.cdiv(H, BH)
    tile, half = tl.program_id(1) % tiles, tl.program_id(1) // tiles
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile * BH + tl.arange(0, BH)
    row_ok, col_ok = rows < batch, cols < H
    mask = row_ok[:, None] & col_ok[None, :]
    at = rows[:, None] * (2 * H) + half * H + cols[None, :]
    y = tl.load(reads + at, mask=mask, other=0.0)
    own_inverse = tl.load(inverse + rows * 2 + half, mask=row_ok, other=0.0)
    scale = tl.load(scales + half * H + cols, mask=col_ok, other=0.0)
    total = piece_sum(pieces, at, mask, batch, G, 2 * H)
    store_slope(slope, at, y, scale, own_inverse, total, mask, parts + tl.program_id(1) * batch, rows, batch)


@triton.jit
def piece_sum(pieces: tensor, at: tensor, mask: tensor, batch: tensor, COUNT: constexpr, WIDTH: constexpr) -> tensor:
    """Of ``COUNT`` pieces of a sum [COUNT, batch, WIDTH], in their order."""
    total = tl.load(pieces + at, mask=mask, other=0.0)
    for piece in tl.static_range(1, COUNT):
        total += tl.load(pieces + piece * batch * WIDTH + at, mask=mask, other=0.0)
    return total
