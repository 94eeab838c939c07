"""The kernels of one step of DreamerV3's walk on the way back: five, as on the way there, with the same sizes.

``slope`` is the gradient of what a SiLU read. The norm in front of it is left to whoever reads the slope next.
"""

from __future__ import annotations

import triton

from reverie.components.representation_learners.rssm_kernel_parts import (
    class_probs,
    constexpr,
    norm_gradient,
    norm_gradient_product,
    product,
    row_sums,
    store_slope,
    tanh,
    tensor,
    tl,
)


@triton.jit
def seen_slope_kernel(
    to_logits: tensor,
    weight: tensor,
    seen: tensor,
    inverse: tensor,
    scale: tensor,
    slope: tensor,
    parts: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
) -> None:
    """From the logits to the posterior's first layer."""
    tile = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile * BN + tl.arange(0, BN)
    col_ok = cols < H
    mask = (rows[:, None] < batch) & col_ok[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    acc = product(acc, to_logits, rows, batch, weight, cols, col_ok, S * C, S * C, H, 1, BK)
    own_inverse = tl.load(inverse + rows, mask=rows < batch, other=0.0)
    own_scale = tl.load(scale + cols, mask=col_ok, other=0.0)
    at = rows[:, None] * H + cols[None, :]
    store_slope(slope, seen, at, own_scale, own_inverse, acc, mask, parts + tile * batch, rows, batch)


@triton.jit
def gate_gradient_kernel(
    slope: tensor,
    seen: tensor,
    inverse: tensor,
    scale: tensor,
    parts: tensor,
    weight: tensor,
    above: tensor,
    later: tensor,
    old: tensor,
    keep: tensor,
    gates: tensor,
    to_gates: tensor,
    to_old: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
) -> None:
    """To the new ``deter``, from the posterior, from whoever used it and from the later step; then to the gates."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    row_ok, col_ok = rows < batch, cols < G * OWN
    mask = row_ok[:, None] & col_ok[None, :]
    at = rows[:, None] * (G * OWN) + cols[None, :]
    own_inverse = tl.load(inverse + rows, mask=row_ok, other=0.0)
    along = row_sums(parts, rows, batch, triton.cdiv(H, BN)) / H
    to_new = tl.load(above + at, mask=mask, other=0.0) + tl.load(later + at, mask=mask, other=0.0)
    to_new = norm_gradient_product(
        to_new, slope, seen, scale, own_inverse, along, rows, batch, weight, cols, col_ok, H, H, G * OWN, 1, BK
    )
    # Each block has its own three gates.
    at_gates = rows[:, None] * (3 * G * OWN) + (cols // OWN * (3 * OWN) + cols % OWN)[None, :]
    reset = tl.sigmoid(tl.load(gates + at_gates, mask=mask, other=0.0).to(tl.float32))
    candidate = tl.load(gates + at_gates + OWN, mask=mask, other=0.0).to(tl.float32)
    update = tl.sigmoid(tl.load(gates + at_gates + 2 * OWN, mask=mask, other=0.0).to(tl.float32) - 1)
    before = tl.load(old + at, mask=mask, other=0.0) * tl.load(keep + rows, mask=row_ok, other=0.0)[:, None]
    value = tanh(reset * candidate)
    inside = to_new * update * (1 - value * value)
    kind = to_gates.dtype.element_ty
    tl.store(to_gates + at_gates, (inside * candidate * reset * (1 - reset)).to(kind), mask=mask)
    tl.store(to_gates + at_gates + OWN, (inside * reset).to(kind), mask=mask)
    tl.store(to_gates + at_gates + 2 * OWN, (to_new * (value - before) * update * (1 - update)).to(kind), mask=mask)
    tl.store(to_old + at, to_new * (1 - update), mask=mask)


@triton.jit
def block_slope_kernel(
    to_gates: tensor,
    weight: tensor,
    blocks: tensor,
    inverse: tensor,
    scale: tensor,
    slope: tensor,
    parts: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
) -> None:
    """From the gates to the blocks in front of them."""
    tile = tl.program_id(1)
    group = tile // triton.cdiv(OWN, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile % triton.cdiv(OWN, BN) * BN + tl.arange(0, BN)
    col_ok = cols < OWN
    mask = (rows[:, None] < batch) & col_ok[None, :]
    to_gates += group * (3 * OWN)
    weight += group * (3 * OWN * OWN)
    acc = tl.zeros((BM, BN), tl.float32)
    acc = product(acc, to_gates, rows, batch, weight, cols, col_ok, 3 * OWN, 3 * G * OWN, 1, 3 * OWN, BK)
    own_inverse = tl.load(inverse + rows, mask=rows < batch, other=0.0)
    own_scale = tl.load(scale + group * OWN + cols, mask=col_ok, other=0.0)
    at = rows[:, None] * (G * OWN) + group * OWN + cols[None, :]
    store_slope(slope, blocks, at, own_scale, own_inverse, acc, mask, parts + tile * batch, rows, batch)


@triton.jit
def read_slope_kernel(
    slope: tensor,
    blocks: tensor,
    inverse: tensor,
    scale: tensor,
    parts: tensor,
    weight: tensor,
    to_old: tensor,
    reads: tensor,
    read_inverse: tensor,
    read_scales: tensor,
    read_slope: tensor,
    read_parts: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
) -> None:
    """From the blocks to what each read of its own part, and to what all of them read: that is a sum over blocks."""
    count: constexpr = G * triton.cdiv(OWN, BN)
    tile = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    is_own = tile < count
    group = tile // triton.cdiv(OWN, BN)
    part = tl.maximum(tile - count, 0)
    half = part // triton.cdiv(H, BN)
    own_cols = tile % triton.cdiv(OWN, BN) * BN + tl.arange(0, BN)
    shared_cols = part % triton.cdiv(H, BN) * BN + tl.arange(0, BN)
    cols = tl.where(is_own, own_cols, OWN + half * H + shared_cols)
    col_ok = tl.where(is_own, own_cols < OWN, shared_cols < H)
    first, last = tl.where(is_own, group, 0) * OWN, tl.where(is_own, group + 1, G) * OWN
    mask = (rows[:, None] < batch) & col_ok[None, :]
    own_inverse = tl.load(inverse + rows, mask=rows < batch, other=0.0)
    along = row_sums(parts, rows, batch, count) / (G * OWN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(first, last, BK):  # one loop over all blocks: loads of the next overlap with this one's product
        k = start + tl.arange(0, BK)
        k_ok = k < last
        x = norm_gradient(slope, blocks, scale, own_inverse, along, rows, batch, k, k_ok, G * OWN)
        at = (k // OWN * ((OWN + 2 * H) * OWN) + k % OWN)[:, None] + cols[None, :] * OWN
        tail = tl.load(weight + at, mask=k_ok[:, None] & col_ok[None, :], other=0.0)
        acc = tl.dot(x, tail, acc, input_precision="ieee")
    if is_own:
        place = to_old + rows[:, None] * (G * OWN) + group * OWN + own_cols[None, :]
        tl.store(place, tl.load(place, mask=mask, other=0.0) + acc, mask=mask)
    else:
        half_inverse = tl.load(read_inverse + rows * 2 + half, mask=rows < batch, other=0.0)
        half_scale = tl.load(read_scales + half * H + shared_cols, mask=col_ok, other=0.0)
        at_read = rows[:, None] * (2 * H) + half * H + shared_cols[None, :]
        left = read_parts + part * batch
        store_slope(read_slope, reads, at_read, half_scale, half_inverse, acc, mask, left, rows, batch)


@triton.jit
def carry_gradient_kernel(
    slope: tensor,
    reads: tensor,
    inverse: tensor,
    scales: tensor,
    parts: tensor,
    deter_weight: tensor,
    stoch_weight: tensor,
    keep: tensor,
    to_old: tensor,
    to_deter: tensor,
    to_stoch: tensor,
    above: tensor,
    logits: tensor,
    logits_above: tensor,
    to_logits: tensor,
    mix: tensor,
    batch: tensor,
    HAS_PAST: constexpr,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
) -> None:
    """To the carry; and, where a step was before it, on to the logits of that step.

    ``above`` and what follows it belong to the step before, and are not touched without one.
    """
    tile = tl.program_id(1)
    count: constexpr = triton.cdiv(G * OWN, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    row_ok = rows < batch
    kept = tl.load(keep + rows, mask=row_ok, other=0.0)[:, None]
    if tile < count:
        cols = tile * BN + tl.arange(0, BN)
        col_ok = cols < G * OWN
        mask = row_ok[:, None] & col_ok[None, :]
        at = rows[:, None] * (G * OWN) + cols[None, :]
        own = tl.load(inverse + rows * 2, mask=row_ok, other=0.0)
        along = row_sums(parts, rows, batch, triton.cdiv(H, BN)) / H
        acc = tl.load(to_old + at, mask=mask, other=0.0)
        acc = norm_gradient_product(
            acc, slope, reads, scales, own, along, rows, batch, deter_weight, cols, col_ok, H, 2 * H, G * OWN, 1, BK
        )
        tl.store(to_deter + at, acc * kept, mask=mask)
    else:
        # Names of its own: both branches must agree on the shapes of those that they share.
        index = tl.arange(0, V * CP)
        variable = (tile - count) * V + index // CP
        lanes = variable * C + index % CP
        lane_ok = (variable < S) & (index % CP < C)
        inside = row_ok[:, None] & lane_ok[None, :]
        place = rows[:, None] * (S * C) + lanes[None, :]
        own_two = tl.load(inverse + rows * 2 + 1, mask=row_ok, other=0.0)
        along_two = row_sums(parts + triton.cdiv(H, BN) * batch, rows, batch, triton.cdiv(H, BN)) / H
        y, left, scale = reads + H, slope + H, scales + H
        found = tl.zeros((BM, V * CP), tl.float32)
        found = norm_gradient_product(
            found, left, y, scale, own_two, along_two, rows, batch, stoch_weight, lanes, lane_ok, H, 2 * H, S * C, 1, BK
        )
        found *= kept
        if HAS_PAST:
            found += tl.load(above + place, mask=inside, other=0.0)
            probs = class_probs(tl.load(logits + place, mask=inside, other=0.0).to(tl.float32), C, V, CP)
            to_probs = tl.reshape(found, (BM, V, CP)) * (1 - mix)
            total = tl.reshape(probs * (to_probs - tl.sum(probs * to_probs, 2, keep_dims=True)), (BM, V * CP))
            total += tl.load(logits_above + place, mask=inside, other=0.0).to(tl.float32)
            tl.store(to_logits + place, total.to(to_logits.dtype.element_ty), mask=inside)
        else:
            tl.store(to_stoch + place, found, mask=inside)
