"""A convolution of few channels, its pooling, norm and SiLU as one kernel, and two for the gradients. In Triton.

A pixel of the small map stands for a square of two by two pixels, its corners, and what these four read lies in one
patch of ``D`` by ``D`` pixels, ``D`` being the convolution's kernel and one more. So a program gathers the patches of
some pixels once, and multiplies them with the weights of each corner: zeros where that corner does not look.

Sizes: ``HEIGHT`` and ``WIDTH`` of the small map, ``C`` channels of the picture, ``O`` of the result; ``KP`` and ``OP``
are D * D * C and O filled up to powers of two; ``BM`` pixels are done at a time. Pictures lie as [N, H, W, C] with the
border of zeros that the convolution wants, so that a patch is read without asking what is inside.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import EPSILON, constexpr, tensor, tl


@triton.jit
def halved_kernel(
    pictures: tensor,
    weights: tensor,
    bias: tensor,
    scale: tensor,
    largest: tensor,
    winner: tensor,
    output: tensor,
    count: tensor,
    HEIGHT: constexpr,
    WIDTH: constexpr,
    C: constexpr,
    D: constexpr,
    O: constexpr,  # noqa: E741
    KP: constexpr,
    OP: constexpr,
    BM: constexpr,
) -> None:
    """The largest of the four corners, which one that was, and norm and SiLU of it: each [count, O]."""
    pixels = tl.program_id(0) * BM + tl.arange(0, BM)
    k, cols = tl.arange(0, KP), tl.arange(0, OP)
    start = _origins(tl.minimum(pixels, count - 1), HEIGHT, WIDTH, C, D)
    at = start[:, None] + _places(k, WIDTH, C, D)[None, :]
    patches = tl.load(pictures + at, mask=(k < D * D * C)[None, :], other=0.0)
    col_ok = cols < O
    shift = tl.load(bias + cols, mask=col_ok, other=0.0).to(pictures.dtype.element_ty)
    best = tl.full((BM, OP), float("-inf"), tl.float32)
    which = tl.zeros((BM, OP), tl.int32)
    for corner in range(4):  # the compiler fetches the weights of the next one while it multiplies
        value = _corner(patches, weights + corner * (D * D * C * O), shift, k, cols, C, D, O)
        # Of equal ones the first stays, and so does what is not a number, as in max_pool2d.
        is_better = (value > best) | (value != value)
        best = tl.where(is_better, value, best)
        which = tl.where(is_better, corner, which)
    inverse = tl.rsqrt(tl.sum(best * best, 1) / O + EPSILON)
    x = best * inverse[:, None] * tl.load(scale + cols, mask=col_ok, other=0.0)[None, :]
    mask = (pixels < count)[:, None] & col_ok[None, :]
    at = pixels.to(tl.int64)[:, None] * O + cols[None, :]
    tl.store(largest + at, best.to(largest.dtype.element_ty), mask=mask)
    tl.store(winner + at, which.to(tl.int8), mask=mask)
    tl.store(output + at, (x * tl.sigmoid(x)).to(output.dtype.element_ty), mask=mask)


@triton.jit
def _corner(
    patches: tensor,
    weights: tensor,
    shift: tensor,
    k: tensor,
    cols: tensor,
    C: constexpr,
    D: constexpr,
    O: constexpr,  # noqa: E741
) -> tensor:
    """Rounded as a convolution's result would be kept: even colours must tie in spite of the order of sums."""
    inside = (k[:, None] < D * D * C) & (cols[None, :] < O)
    weight = tl.load(weights + k[:, None] * O + cols[None, :], mask=inside, other=0.0)
    value = tl.dot(patches, weight, input_precision="ieee") + shift.to(tl.float32)[None, :]
    return value.to(patches.dtype).to(tl.float32)


@triton.jit
def _origins(pixels: tensor, HEIGHT: constexpr, WIDTH: constexpr, C: constexpr, D: constexpr) -> tensor:
    """Where the patch of each pixel of the small map begins. All terms are even: the compiler reads two at once."""
    row = pixels // WIDTH
    line = row // HEIGHT * (2 * HEIGHT + D - 2) + 2 * (row % HEIGHT)
    return (line.to(tl.int64) * (2 * WIDTH + D - 2) + 2 * (pixels % WIDTH)) * C


@triton.jit
def _places(k: tensor, WIDTH: constexpr, C: constexpr, D: constexpr) -> tensor:
    """And where the ``k``-th number of a patch lies from there."""
    return k // (D * C) * ((2 * WIDTH + D - 2) * C) + k % (D * C)


@triton.jit
def largest_gradient_kernel(
    gradient: tensor,
    largest: tensor,
    scale: tensor,
    to_largest: tensor,
    parts: tensor,
    count: tensor,
    O: constexpr,  # noqa: E741
    OP: constexpr,
    BM: constexpr,
) -> None:
    """Back through SiLU and norm; ``parts`` [programs, 2, O] are terms of the gradients of scale and bias."""
    pixels = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.arange(0, OP)
    col_ok = cols < O
    mask = (pixels < count)[:, None] & col_ok[None, :]
    at = pixels.to(tl.int64)[:, None] * O + cols[None, :]
    y = tl.load(largest + at, mask=mask, other=0.0).to(tl.float32)
    factor = tl.load(scale + cols, mask=col_ok, other=0.0)[None, :]
    inverse = tl.rsqrt(tl.sum(y * y, 1) / O + EPSILON)[:, None]
    normed = y * inverse
    x = normed * factor
    gate = tl.sigmoid(x)
    slope = tl.load(gradient + at, mask=mask, other=0.0).to(tl.float32) * gate * (1 + x * (1 - gate))
    to_normed = slope * factor
    along = tl.sum(to_normed * normed, 1) / O
    to_y = ((to_normed - normed * along[:, None]) * inverse).to(to_largest.dtype.element_ty)
    tl.store(to_largest + at, to_y, mask=mask)
    parts += tl.program_id(0) * (2 * O) + cols
    tl.store(parts, tl.sum(slope * normed, 0), mask=col_ok)
    tl.store(parts + O, tl.sum(to_y.to(tl.float32), 0), mask=col_ok)


@triton.jit
def weights_gradient_kernel(
    pictures: tensor,
    to_largest: tensor,
    winner: tensor,
    parts: tensor,
    count: tensor,
    HEIGHT: constexpr,
    WIDTH: constexpr,
    C: constexpr,
    D: constexpr,
    O: constexpr,  # noqa: E741
    KP: constexpr,
    OT: constexpr,
    BM: constexpr,
    TURNS: constexpr,
) -> None:
    """Of the weights of all corners, the terms of ``TURNS`` times ``BM`` pixels: ``parts`` [programs, 4, D * D * C, O].

    Columns of the product are ``OT`` channels for each corner, and a gradient stands in those of the corner that won.
    """
    k, corners = tl.arange(0, KP), tl.arange(0, 4)
    cols = tl.program_id(1) * OT + tl.arange(0, OT)
    places = _places(k, WIDTH, C, D)[:, None]
    found = tl.zeros((KP, 4 * OT), tl.float32)
    for turn in range(TURNS):
        pixels = (tl.program_id(0) * TURNS + turn) * BM + tl.arange(0, BM)
        origins = _origins(tl.minimum(pixels, count - 1), HEIGHT, WIDTH, C, D)
        patches = tl.load(pictures + (places + origins[None, :]), mask=(k < D * D * C)[:, None], other=0.0)
        mask = (pixels < count)[:, None] & (cols < O)[None, :]
        at = pixels.to(tl.int64)[:, None] * O + cols[None, :]
        won = tl.load(winner + at, mask=mask, other=0)
        gradient = tl.load(to_largest + at, mask=mask, other=0.0)
        spread = tl.where(won[:, None, :] == corners[None, :, None], gradient[:, None, :], 0.0).to(patches.dtype)
        found = tl.dot(patches, tl.reshape(spread, (BM, 4 * OT)), found, input_precision="ieee")
    index = tl.arange(0, 4 * OT)
    corner, col = index // OT, tl.program_id(1) * OT + index % OT
    at = (corner[None, :] * (D * D * C) + k[:, None]) * O + col[None, :]
    mask = (k < D * D * C)[:, None] & (col < O)[None, :]
    tl.store(parts + tl.program_id(0) * (4 * D * D * C * O) + at, found, mask=mask)
