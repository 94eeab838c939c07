"""Pieces of the kernels of DreamerV3's walk: products whose left side is worked out while it is read, and norms.

One program owns ``BM`` rows of the batch and ``BN`` columns of a result. A norm needs a whole row, which no program
has: each writes the sum of its own columns, and whoever reads the row next adds these up, always in the same order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language

from reverie.components.networks.layers import NORM_EPSILON

if TYPE_CHECKING:  # Triton's own types are the compiler's view of values, not that of who writes kernels
    tl: Any = ...
    constexpr = Any
    tensor = Any
else:
    tl = triton.language
    constexpr, tensor = tl.constexpr, tl.tensor

EPSILON = tl.constexpr(NORM_EPSILON)


@triton.jit
def row_sums(parts: tensor, rows: tensor, batch: tensor, COUNT: constexpr) -> tensor:
    """Of the sums [COUNT, batch] that programs left."""
    index = tl.arange(0, triton.next_power_of_2(COUNT))
    mask = (index[None, :] < COUNT) & (rows[:, None] < batch)
    return tl.sum(tl.load(parts + index[None, :] * batch + rows[:, None], mask=mask, other=0.0), 1)


@triton.jit
def inverse_size(parts: tensor, rows: tensor, batch: tensor, COUNT: constexpr, WIDTH: constexpr) -> tensor:
    """What a norm multiplies its rows with."""
    return tl.rsqrt(row_sums(parts, rows, batch, COUNT) / WIDTH + EPSILON)


@triton.jit
def weight_tile(
    weight: tensor,
    k: tensor,
    cols: tensor,
    col_ok: tensor,
    K: constexpr,
    WK: constexpr,
    WN: constexpr,
) -> tensor:
    return tl.load(weight + k[:, None] * WK + cols[None, :] * WN, mask=(k[:, None] < K) & col_ok[None, :], other=0.0)


@triton.jit
def product(
    acc: tensor,
    left: tensor,
    rows: tensor,
    batch: tensor,
    weight: tensor,
    cols: tensor,
    col_ok: tensor,
    K: constexpr,
    STRIDE: constexpr,
    WK: constexpr,
    WN: constexpr,
    BK: constexpr,
) -> tensor:
    """``acc`` and [rows, K] times a weight whose element (k, n) lies at k * WK + n * WN."""
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        mask = (rows[:, None] < batch) & (k[None, :] < K)
        x = tl.load(left + rows[:, None] * STRIDE + k[None, :], mask=mask, other=0.0)
        acc = tl.dot(x, weight_tile(weight, k, cols, col_ok, K, WK, WN), acc, input_precision="ieee")
    return acc


@triton.jit
def activated(
    y: tensor,
    scale: tensor,
    inverse: tensor,
    rows: tensor,
    batch: tensor,
    k: tensor,
    K: constexpr,
    STRIDE: constexpr,
) -> tensor:
    """Norm and SiLU of what lies at ``y``."""
    mask = (rows[:, None] < batch) & (k[None, :] < K)
    values = tl.load(y + rows[:, None] * STRIDE + k[None, :], mask=mask, other=0.0).to(tl.float32)
    x = values * inverse[:, None] * tl.load(scale + k, mask=k < K, other=0.0)[None, :]
    return (x * tl.sigmoid(x)).to(y.dtype.element_ty)


@triton.jit
def activated_product(
    acc: tensor,
    y: tensor,
    scale: tensor,
    inverse: tensor,
    rows: tensor,
    batch: tensor,
    weight: tensor,
    cols: tensor,
    col_ok: tensor,
    K: constexpr,
    STRIDE: constexpr,
    WK: constexpr,
    WN: constexpr,
    BK: constexpr,
) -> tensor:
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = activated(y, scale, inverse, rows, batch, k, K, STRIDE)
        acc = tl.dot(x, weight_tile(weight, k, cols, col_ok, K, WK, WN), acc, input_precision="ieee")
    return acc


@triton.jit
def norm_gradient(
    slope: tensor,
    y: tensor,
    scale: tensor,
    inverse: tensor,
    along: tensor,
    rows: tensor,
    batch: tensor,
    k: tensor,
    k_ok: tensor,
    STRIDE: constexpr,
) -> tensor:
    """That of ``y``; ``along`` is the mean of the normed's gradient times the normed."""
    mask = (rows[:, None] < batch) & k_ok[None, :]
    at = rows[:, None] * STRIDE + k[None, :]
    normed = tl.load(y + at, mask=mask, other=0.0).to(tl.float32) * inverse[:, None]
    to_normed = tl.load(slope + at, mask=mask, other=0.0) * tl.load(scale + k, mask=k_ok, other=0.0)[None, :]
    return ((to_normed - normed * along[:, None]) * inverse[:, None]).to(y.dtype.element_ty)


@triton.jit
def norm_gradient_product(
    acc: tensor,
    slope: tensor,
    y: tensor,
    scale: tensor,
    inverse: tensor,
    along: tensor,
    rows: tensor,
    batch: tensor,
    weight: tensor,
    cols: tensor,
    col_ok: tensor,
    K: constexpr,
    STRIDE: constexpr,
    WK: constexpr,
    WN: constexpr,
    BK: constexpr,
) -> tensor:
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        x = norm_gradient(slope, y, scale, inverse, along, rows, batch, k, k < K, STRIDE)
        acc = tl.dot(x, weight_tile(weight, k, cols, col_ok, K, WK, WN), acc, input_precision="ieee")
    return acc


@triton.jit
def store_with_squares(
    y: tensor, at: tensor, values: tensor, mask: tensor, part: tensor, rows: tensor, batch: tensor
) -> None:
    """What a norm will read, and the sum of its squares as it was rounded."""
    rounded = values.to(y.dtype.element_ty)
    tl.store(y + at, rounded, mask=mask)
    wide = tl.where(mask, rounded.to(tl.float32), 0.0)
    tl.store(part + rows, tl.sum(wide * wide, 1), mask=rows < batch)


@triton.jit
def store_slope(
    slope: tensor,
    y: tensor,
    at: tensor,
    scale: tensor,
    inverse: tensor,
    gradient: tensor,
    mask: tensor,
    part: tensor,
    rows: tensor,
    batch: tensor,
) -> None:
    """From the gradient of norm and SiLU to that of what SiLU read, and the sum that the norm's own gradient needs.

    ``scale`` and ``inverse`` are values here; ``gradient`` is [rows, columns].
    """
    normed = tl.load(y + at, mask=mask, other=0.0).to(tl.float32) * inverse[:, None]
    x = normed * scale[None, :]
    gate = tl.sigmoid(x)
    values = gradient * gate * (1 + x * (1 - gate))
    tl.store(slope + at, values, mask=mask)
    tl.store(part + rows, tl.sum(tl.where(mask, values * scale[None, :] * normed, 0.0), 1), mask=rows < batch)


@triton.jit
def tanh(x: tensor) -> tensor:
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def class_probs(logits: tensor, C: constexpr, V: constexpr, CP: constexpr) -> tensor:
    """[rows, V * CP] -> [rows, V, CP]: the classes of each variable, and nothing in the columns that fill up."""
    by_class = tl.reshape(logits, (logits.shape[0], V, CP))
    by_class = tl.where((tl.arange(0, CP) < C)[None, None, :], by_class, float("-inf"))
    powers = tl.exp(by_class - tl.max(by_class, 2, keep_dims=True))
    return powers / tl.sum(powers, 2, keep_dims=True)
