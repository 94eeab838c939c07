"""The kernels of one step of DreamerV3's walk on the way back: five, with the sizes of those on the way there.

``slope`` is the gradient of what a SiLU read. The norm in front of it is left to whoever reads the slope next.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import await_earlier
from reverie.components.representation_learners.rssm_kernel_parts import (
    class_probs,
    constexpr,
    norm_gradient_product,
    product,
    row_parts,
    store_slope,
    tanh,
    tensor,
    tl,
    warp_sums,
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
    H: constexpr,
    S: constexpr,
    C: constexpr,
    BM: constexpr,
    BH: constexpr,
    BK: constexpr,
    P: constexpr,
    OVERLAP: constexpr,
) -> None:
    """From the logits to the posterior's first layer."""
    await_earlier(OVERLAP)
    tile = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile * BH + tl.arange(0, BH)
    col_ok = cols < H
    mask = (rows[:, None] < batch) & col_ok[None, :]
    at = rows[:, None] * H + cols[None, :]
    own_inverse = tl.load(inverse + rows, mask=rows < batch, other=0.0)
    own_scale = tl.load(scale + cols, mask=col_ok, other=0.0)
    y = tl.load(seen + at, mask=mask, other=0.0)
    acc = tl.zeros((P, BM, BH), tl.float32)
    acc = product(acc, to_logits, rows, batch, weight, cols, col_ok, 0, S * C, S * C, S * C, H, 1, BK, P)
    left = parts + tile * batch
    store_slope(slope, at, y, own_scale, own_inverse, warp_sums(acc), mask, left, rows, batch)


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
    BM: constexpr,
    BN: constexpr,
    BH: constexpr,
    BK: constexpr,
    P: constexpr,
    OVERLAP: constexpr,
) -> None:
    """To the new ``deter``, from the posterior, from whoever used it and from the later step; then to the gates."""
    await_earlier(OVERLAP)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    row_ok, col_ok = rows < batch, cols < G * OWN
    mask = row_ok[:, None] & col_ok[None, :]
    at = rows[:, None] * (G * OWN) + cols[None, :]
    # Each block has its own three gates.
    at_gates = rows[:, None] * (3 * G * OWN) + (cols // OWN * (3 * OWN) + cols % OWN)[None, :]
    left = row_parts(parts, rows, batch, triton.cdiv(H, BH))
    own_inverse = tl.load(inverse + rows, mask=row_ok, other=0.0)
    to_new = tl.load(above + at, mask=mask, other=0.0) + tl.load(later + at, mask=mask, other=0.0)
    reset = tl.load(gates + at_gates, mask=mask, other=0.0)
    candidate = tl.load(gates + at_gates + OWN, mask=mask, other=0.0).to(tl.float32)
    update = tl.load(gates + at_gates + 2 * OWN, mask=mask, other=0.0)
    before = tl.load(old + at, mask=mask, other=0.0) * tl.load(keep + rows, mask=row_ok, other=0.0)[:, None]
    along = tl.sum(left, 1) / H
    acc = tl.zeros((P, BM, BN), tl.float32)
    acc = norm_gradient_product(
        acc, slope, seen, scale, own_inverse, along, rows, batch, weight, cols, col_ok, H, H, G * OWN, 1, BK, P
    )
    to_new += warp_sums(acc)
    reset, update = tl.sigmoid(reset.to(tl.float32)), tl.sigmoid(update.to(tl.float32) - 1)
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
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
    P: constexpr,
    OVERLAP: constexpr,
) -> None:
    """From the gates to the blocks in front of them."""
    await_earlier(OVERLAP)
    tile = tl.program_id(1)
    group = tile // triton.cdiv(OWN, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile % triton.cdiv(OWN, BN) * BN + tl.arange(0, BN)
    col_ok = cols < OWN
    mask = (rows[:, None] < batch) & col_ok[None, :]
    to_gates += group * (3 * OWN)
    weight += group * (3 * OWN * OWN)
    at = rows[:, None] * (G * OWN) + group * OWN + cols[None, :]
    own_inverse = tl.load(inverse + rows, mask=rows < batch, other=0.0)
    own_scale = tl.load(scale + group * OWN + cols, mask=col_ok, other=0.0)
    y = tl.load(blocks + at, mask=mask, other=0.0)
    acc = tl.zeros((P, BM, BN), tl.float32)
    acc = product(acc, to_gates, rows, batch, weight, cols, col_ok, 0, 3 * OWN, 3 * OWN, 3 * G * OWN, 1, 3 * OWN, BK, P)
    left = parts + tile * batch
    store_slope(slope, at, y, own_scale, own_inverse, warp_sums(acc), mask, left, rows, batch)


@triton.jit
def read_slope_kernel(
    slope: tensor,
    blocks: tensor,
    inverse: tensor,
    scale: tensor,
    parts: tensor,
    weight: tensor,
    to_old: tensor,
    pieces: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
    P: constexpr,
    OVERLAP: constexpr,
) -> None:
    """From each block to what it read: to its own part, and a piece of the sum for what all blocks read."""
    await_earlier(OVERLAP)
    own_tiles: constexpr = triton.cdiv(OWN, BN)
    tiles: constexpr = own_tiles + triton.cdiv(2 * H, BN)
    tile, group = tl.program_id(1) % tiles, tl.program_id(1) // tiles
    is_own = tile < own_tiles
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.where(is_own, tile, tile - own_tiles) * BN + tl.arange(0, BN)
    row_ok, col_ok = rows < batch, cols < tl.where(is_own, OWN, 2 * H)
    mask = row_ok[:, None] & col_ok[None, :]
    at_own = rows[:, None] * (G * OWN) + group * OWN + cols[None, :]
    left = row_parts(parts, rows, batch, G * own_tiles)
    own_inverse = tl.load(inverse + rows, mask=row_ok, other=0.0)
    inside = row_ok[:, None] & (cols < tl.where(is_own, OWN, 0))[None, :]
    before = tl.load(to_old + at_own, mask=inside, other=0.0)
    along = tl.sum(left, 1) / (G * OWN)
    slope, blocks, scale = slope + group * OWN, blocks + group * OWN, scale + group * OWN
    weight += (group * (OWN + 2 * H) + tl.where(is_own, 0, OWN)) * OWN
    acc = tl.zeros((P, BM, BN), tl.float32)
    acc = norm_gradient_product(
        acc, slope, blocks, scale, own_inverse, along, rows, batch, weight, cols, col_ok, OWN, G * OWN, 1, OWN, BK, P
    )
    total = warp_sums(acc)
    if is_own:
        tl.store(to_old + at_own, before + total, mask=mask)
    else:
        tl.store(pieces + (group * batch + rows[:, None]) * (2 * H) + cols[None, :], total, mask=mask)


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
    BH: constexpr,
    BK: constexpr,
    P: constexpr,
    OVERLAP: constexpr,
) -> None:
    """To the carry; and, where a step was before it, on to the logits of that step.

    ``above`` and what follows it belong to the step before, and are not touched without one.
    """
    await_earlier(OVERLAP)
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
        left = row_parts(parts, rows, batch, triton.cdiv(H, BH))
        own = tl.load(inverse + rows * 2, mask=row_ok, other=0.0)
        before = tl.load(to_old + at, mask=mask, other=0.0)
        along = tl.sum(left, 1) / H
        acc = tl.zeros((P, BM, BN), tl.float32)
        acc = norm_gradient_product(
            acc, slope, reads, scales, own, along, rows, batch, deter_weight, cols, col_ok, H, 2 * H, G * OWN, 1, BK, P
        )
        tl.store(to_deter + at, (before + warp_sums(acc)) * kept, mask=mask)
    else:
        # Names of its own: both branches must agree on the shapes of those that they share.
        index = tl.arange(0, V * CP)
        variable = (tile - count) * V + index // CP
        lanes = variable * C + index % CP
        lane_ok = (variable < S) & (index % CP < C)
        inside = row_ok[:, None] & lane_ok[None, :]
        place = rows[:, None] * (S * C) + lanes[None, :]
        left_two = row_parts(parts + triton.cdiv(H, BH) * batch, rows, batch, triton.cdiv(H, BH))
        own_two = tl.load(inverse + rows * 2 + 1, mask=row_ok, other=0.0)
        earlier = inside & HAS_PAST
        used = tl.load(above + place, mask=earlier, other=0.0)
        past = tl.load(logits + place, mask=earlier, other=0.0).to(tl.float32)
        added = tl.load(logits_above + place, mask=earlier, other=0.0).to(tl.float32)
        y, own_slope, scale, means = reads + H, slope + H, scales + H, tl.sum(left_two, 1) / H
        sums, weight = tl.zeros((P, BM, V * CP), tl.float32), stoch_weight
        sums = norm_gradient_product(
            sums, own_slope, y, scale, own_two, means, rows, batch, weight, lanes, lane_ok, H, 2 * H, S * C, 1, BK, P
        )
        found = warp_sums(sums) * kept
        if HAS_PAST:
            probs = class_probs(past, C, V, CP)
            to_probs = tl.reshape(found + used, (BM, V, CP)) * (1 - mix)
            total = tl.reshape(probs * (to_probs - tl.sum(probs * to_probs, 2, keep_dims=True)), (BM, V * CP))
            tl.store(to_logits + place, (total + added).to(to_logits.dtype.element_ty), mask=inside)
        else:
            tl.store(to_stoch + place, found, mask=inside)
