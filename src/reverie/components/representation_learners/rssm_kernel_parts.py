"""Pieces of the kernels of DreamerV3's walk: products whose left side is worked out while it is read, and norms.

One program owns ``BM`` rows of the batch and some columns of a result. A norm needs a whole row, which no program
has: each writes the sum of its own columns, and whoever reads the row next adds these up, always in the same order.

A sum takes ``BK`` terms at a time, cut into ``P`` parts that are added up at its end: each warp has its own part. Side
by side on the same terms, all warps would fetch the same left side, and each wait for one long chain of products.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import EPSILON, constexpr, tensor, tl


@triton.jit
def row_parts(parts: tensor, rows: tensor, batch: tensor, COUNT: constexpr) -> tensor:
    """Of the sums [COUNT, batch] that programs left: [rows, COUNT]. Asked for early, added up late."""
    index = tl.arange(0, triton.next_power_of_2(COUNT))
    mask = (index[None, :] < COUNT) & (rows[:, None] < batch)
    return tl.load(parts + index[None, :] * batch + rows[:, None], mask=mask, other=0.0)


@triton.jit
def inverse_size(row_parts: tensor, WIDTH: constexpr) -> tensor:
    """What a norm multiplies its rows with."""
    return tl.rsqrt(tl.sum(row_parts, 1) / WIDTH + EPSILON)


@triton.jit
def terms(start: tensor, BK: constexpr, P: constexpr) -> tensor:
    """[P, BK // P]: of a sum, those that each warp takes."""
    return start + tl.arange(0, P)[:, None] * (BK // P) + tl.arange(0, BK // P)[None, :]


@triton.jit
def warp_sums(acc: tensor) -> tensor:
    """[P, rows, columns] -> [rows, columns]: one half onto the other until one is left.

    ``tl.sum`` would leave all of the result in every warp, and each would repeat what is done with it next.
    """
    by_part = tl.permute(acc, (1, 2, 0))
    for level in tl.static_range(5):
        if acc.shape[0] >> level > 1:
            by_pair = tl.reshape(by_part, (acc.shape[1], acc.shape[2], acc.shape[0] >> (level + 1), 2))
            one, other = tl.split(by_pair)
            by_part = one + other
    return tl.reshape(by_part, (acc.shape[1], acc.shape[2]))


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
    """[P, BK // P, columns] of a weight whose element (k, n) lies at k * WK + n * WN."""
    mask = (k[:, :, None] < K) & col_ok[None, None, :]
    return tl.load(weight + k[:, :, None] * WK + cols[None, None, :] * WN, mask=mask, other=0.0)


@triton.jit
def product(
    acc: tensor,
    left: tensor,
    rows: tensor,
    batch: tensor,
    weight: tensor,
    cols: tensor,
    col_ok: tensor,
    first: tensor,
    COUNT: constexpr,
    K: constexpr,
    STRIDE: constexpr,
    WK: constexpr,
    WN: constexpr,
    BK: constexpr,
    P: constexpr,
) -> tensor:
    """``acc`` and [rows, K] times a weight: of the terms from ``first`` on, ``COUNT``."""
    for start in range(0, COUNT, BK):
        k = terms(first + start, BK, P)
        mask = (rows[None, :, None] < batch) & (k[:, None, :] < K)
        x = tl.load(left + rows[None, :, None] * STRIDE + k[:, None, :], mask=mask, other=0.0)
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
    """Norm and SiLU of what lies at ``y``: [P, rows, BK // P]; ``inverse`` is [rows, 1], or one for each number."""
    mask = (rows[None, :, None] < batch) & (k[:, None, :] < K)
    values = tl.load(y + rows[None, :, None] * STRIDE + k[:, None, :], mask=mask, other=0.0).to(tl.float32)
    x = values * inverse * tl.load(scale + k, mask=k < K, other=0.0)[:, None, :]
    return (x * tl.sigmoid(x)).to(y.dtype.element_ty)


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
    P: constexpr,
) -> tensor:
    """As ``product`` with the gradient of ``y``; ``along`` is the mean of the normed's gradient times the normed."""
    inverse, along = inverse[None, :, None], along[None, :, None]
    for start in range(0, K, BK):
        k = terms(start, BK, P)
        mask = (rows[None, :, None] < batch) & (k[:, None, :] < K)
        at = rows[None, :, None] * STRIDE + k[:, None, :]
        normed = tl.load(y + at, mask=mask, other=0.0).to(tl.float32) * inverse
        to_normed = tl.load(slope + at, mask=mask, other=0.0) * tl.load(scale + k, mask=k < K, other=0.0)[:, None, :]
        x = ((to_normed - normed * along) * inverse).to(y.dtype.element_ty)
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
    at: tensor,
    y: tensor,
    scale: tensor,
    inverse: tensor,
    gradient: tensor,
    mask: tensor,
    part: tensor,
    rows: tensor,
    batch: tensor,
) -> None:
    """From the gradient of norm and SiLU to that of what SiLU read, and the sum that the norm's own gradient needs.

    ``y``, ``scale`` and ``inverse`` are values here; ``gradient`` is [rows, columns].
    """
    normed = y.to(tl.float32) * inverse[:, None]
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
