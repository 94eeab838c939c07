"""The kernel of a plan's layers: the norm and the activation of what it reads, and its product.

A device that makes a plan does little arithmetic in a long chain, so what counts is how many kernels follow each other
and how long each waits for memory. A layer leaves its product as it is, and sums of it; whoever reads that next works
out the norm and the activation of the rows it needs, each program anew.

``rows`` are plans, those of an environment behind each other. Where ``OVERLAP``, a kernel begins before the one ahead
of it has ended: only weights, and which members are asked, may be read before ``await_earlier``.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import await_earlier, constexpr, tensor, tl

PLAIN, MISH, SIMNORM = (tl.constexpr(kind) for kind in range(3))
"""What becomes of a row before a layer reads it; the latter two behind a layer norm."""
_EPSILON = tl.constexpr(1e-5)
"""Of torch's layer norms."""
_LARGE = tl.constexpr(20.0)
"""From here on Mish is its argument in all digits of a float32."""
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def layer_kernel(
    x: tensor,
    sums: tensor,
    scale: tensor,
    shift: tensor,
    action: tensor,
    weight: tensor,
    action_weight: tensor,
    bias: tensor,
    members: tensor,
    y: tensor,
    y_sums: tensor,
    rows: tensor,
    x_group: tensor,
    sums_group: tensor,
    y_group: tensor,
    action_lead: tensor,
    action_stride: tensor,
    repeat: tensor,
    K: constexpr,
    N: constexpr,
    A: constexpr,
    AP: constexpr,
    KIND: constexpr,
    DIM: constexpr,
    OWN: constexpr,
    HAS_MEMBERS: constexpr,
    PARTS: constexpr,
    LP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
    OVERLAP: constexpr,
) -> None:
    """``y`` [groups, rows, N]: what becomes of ``x`` (and ``A`` numbers of an action beside it) times a weight [N, K].

    Of ``OWN`` weights each group has its own; ``members`` says which, otherwise all have the first. A row of ``x``
    serves ``repeat`` rows. Rows of actions lie ``action_lead`` behind each other in every ``action_stride``. ``sums``
    [groups, PARTS, 2, rows] are what the programs that made ``x`` left of it and of its squares: a norm needs them.
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    col = tl.program_id(1) * BN + tl.arange(0, BN)
    group = tl.program_id(2)
    owner = group if OWN else 0
    if HAS_MEMBERS:
        owner = tl.load(members + group).to(tl.int32)
    row_ok, col_ok = row < rows, col < N
    x += group * x_group + (row // repeat)[:, None] * K
    weight += owner * N * K + col[:, None] * K
    if KIND == MISH:  # a latent has one norm, whoever reads it
        scale += owner * K
        shift += owner * K
    added = tl.load(bias + owner * N + col, mask=col_ok, other=0.0)
    await_earlier(OVERLAP)
    acc = tl.zeros((BM, BN), tl.float32)
    if A:
        a = tl.arange(0, AP)
        where = (row // action_lead * action_stride + row % action_lead)[:, None] * A + a[None, :]
        taken = tl.load(action + where, mask=row_ok[:, None] & (a < A)[None, :], other=0.0).to(y.dtype.element_ty)
        place = action_weight + owner * N * A + col[:, None] * A + a[None, :]
        beside = tl.load(place, mask=col_ok[:, None] & (a < A)[None, :], other=0.0)
        acc = tl.dot(taken, tl.trans(beside), acc, input_precision="ieee")
    inverse = tl.zeros((BM,), tl.float32)
    moved = tl.zeros((BM,), tl.float32)
    if KIND != PLAIN:
        part = tl.arange(0, LP)
        at = sums + group * sums_group + 2 * part[None, :] * rows + row[:, None]
        is_part = row_ok[:, None] & (part < PARTS)[None, :]
        mean = tl.sum(tl.load(at, mask=is_part, other=0.0), 1) / K
        square = tl.sum(tl.load(at + rows, mask=is_part, other=0.0), 1) / K
        inverse = tl.rsqrt(tl.maximum(square - mean * mean, 0.0) + _EPSILON)
        moved = -mean * inverse
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        values = tl.load(x + k[None, :], mask=row_ok[:, None] & (k < K)[None, :], other=0.0)
        tile = tl.load(weight + k[None, :], mask=col_ok[:, None] & (k < K)[None, :], other=0.0)
        if KIND != PLAIN:
            gain = tl.load(scale + k, mask=k < K, other=0.0)
            offset = tl.load(shift + k, mask=k < K, other=0.0)
            normed = values.to(tl.float32) * inverse[:, None] + moved[:, None]
            normed = normed * gain[None, :] + offset[None, :]
            values = _activated(normed, KIND, DIM).to(values.dtype)
        acc = tl.dot(values, tl.trans(tile), acc, input_precision="ieee")
    made = (acc + added[None, :]).to(y.dtype.element_ty)
    is_made = row_ok[:, None] & col_ok[None, :]
    tl.store(y + group * y_group + row[:, None] * N + col[None, :], made, mask=is_made)
    wide = tl.where(is_made, made.to(tl.float32), 0.0)
    left = y_sums + (group * tl.num_programs(1) + tl.program_id(1)) * 2 * rows + row
    tl.store(left, tl.sum(wide, 1), mask=row_ok)
    tl.store(left + rows, tl.sum(wide * wide, 1), mask=row_ok)


@triton.jit
def _activated(normed: tensor, KIND: constexpr, DIM: constexpr) -> tensor:
    """Mish, or a softmax in each group of ``DIM``. What lies beyond a row meets no weight.

    Powers of two and roots are single instructions; `exp` and a quotient see to numbers that do not come here.
    """
    if KIND == MISH:
        power = tl.exp2(tl.minimum(normed, _LARGE) * _LOG2_E)
        share = power * (power + 2.0)
        root = tl.rsqrt(share + 2.0)
        result = normed * share * (root * root)
    else:
        groups = tl.reshape(normed, (normed.shape[0], normed.shape[1] // DIM, DIM))
        powers = tl.exp2((groups - tl.max(groups, 2, keep_dims=True)) * _LOG2_E)
        root = tl.rsqrt(tl.sum(powers, 2, keep_dims=True))
        result = tl.reshape(powers * (root * root), (normed.shape[0], normed.shape[1]))
    return result
