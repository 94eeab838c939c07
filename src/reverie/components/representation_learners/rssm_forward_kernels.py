"""The kernels of one step of DreamerV3's walk: five, each a product with all that surrounds it.

Sizes are those of ``rssm_tape.Weights``: ``G`` blocks of ``OWN``, ``H`` hidden, ``S`` variables of ``C`` classes. A
program owns ``BN`` columns of a result as wide as ``deter``, ``BH`` of one as wide as a hidden layer, and one that
draws classes ``V`` variables in columns of ``CP``, the next power of two. Hidden layers have too few columns to keep a
device busy: where what they read is long, a program sums a piece of ``T`` terms, and ``whole_kernel`` adds up.

What a program needs beside its product is asked for in front of it, so that it arrives while the product is made.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import await_earlier
from reverie.components.representation_learners.rssm_kernel_parts import (
    activated,
    class_probs,
    constexpr,
    inverse_size,
    product,
    row_parts,
    store_with_squares,
    tanh,
    tensor,
    terms,
    tl,
    warp_sums,
    weight_tile,
)


@triton.jit
def read_kernel(
    deter: tensor,
    stoch: tensor,
    keep: tensor,
    deter_weight: tensor,
    deter_bias: tensor,
    stoch_weight: tensor,
    stoch_bias: tensor,
    reads: tensor,
    parts: tensor,
    pieces: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    S: constexpr,
    C: constexpr,
    BM: constexpr,
    BH: constexpr,
    BK: constexpr,
    P: constexpr,
    T: constexpr,
    OVERLAP: constexpr,
) -> None:
    """Two linear layers side by side: of the old ``deter``, perhaps in pieces, and of the old ``stoch``."""
    await_earlier(OVERLAP)
    tiles: constexpr = triton.cdiv(H, BH)
    count: constexpr = triton.cdiv(G * OWN, T)
    tile, piece = tl.program_id(1) % tiles, tl.program_id(1) // tiles
    half = piece // count
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile * BH + tl.arange(0, BH)
    col_ok = cols < H
    mask = (rows[:, None] < batch) & col_ok[None, :]
    kept = tl.load(keep + rows, mask=rows < batch, other=0.0)[:, None]
    acc = tl.zeros((P, BM, BH), tl.float32)
    if half == 0:
        bias = tl.load(deter_bias + cols, mask=col_ok, other=0.0)
        first = piece * T
        acc = product(
            acc, deter, rows, batch, deter_weight, cols, col_ok, first, T, G * OWN, G * OWN, 1, G * OWN, BK, P
        )
    else:
        bias = tl.load(stoch_bias + cols, mask=col_ok, other=0.0)
        acc = product(acc, stoch, rows, batch, stoch_weight, cols, col_ok, 0, S * C, S * C, S * C, 1, S * C, BK, P)
    # A row of zeros times the weights is zero, so that keeping can wait until after the product.
    total = warp_sums(acc) * kept
    if (half == 0) & (count > 1):
        tl.store(pieces + (piece * batch + rows[:, None]) * H + cols[None, :], total, mask=mask)
    else:
        at = rows[:, None] * (2 * H) + half * H + cols[None, :]
        left = parts + (half * tiles + tile) * batch
        store_with_squares(reads, at, total + bias.to(tl.float32)[None, :], mask, left, rows, batch)


@triton.jit
def block_kernel(
    deter: tensor,
    keep: tensor,
    reads: tensor,
    read_parts: tensor,
    read_scales: tensor,
    action: tensor,
    weight: tensor,
    blocks: tensor,
    parts: tensor,
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
    """Every block reads its part of the old ``deter``, and what was read of all of it."""
    await_earlier(OVERLAP)
    tile = tl.program_id(1)
    group = tile // triton.cdiv(OWN, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile % triton.cdiv(OWN, BN) * BN + tl.arange(0, BN)
    row_ok, col_ok = rows < batch, cols < OWN
    mask = row_ok[:, None] & col_ok[None, :]
    at = rows[:, None] * (G * OWN) + group * OWN + cols[None, :]
    count: constexpr = triton.cdiv(H, BH)
    one, two = row_parts(read_parts, rows, batch, count), row_parts(read_parts + count * batch, rows, batch, count)
    added = tl.load(action + at, mask=mask, other=0.0).to(tl.float32)
    kept = tl.load(keep + rows, mask=row_ok, other=0.0)
    weight += group * ((OWN + 2 * H) * OWN)
    acc = tl.zeros((P, BM, BN), tl.float32)
    acc = product(acc, deter + group * OWN, rows, batch, weight, cols, col_ok, 0, OWN, OWN, G * OWN, OWN, 1, BK, P)
    acc *= kept[None, :, None]
    one, two = inverse_size(one, H)[None, :, None], inverse_size(two, H)[None, :, None]
    weight += OWN * OWN
    for start in range(0, 2 * H, BK):
        k = terms(start, BK, P)
        inverse = tl.where(k[:, None, :] < H, one, two)
        x = activated(reads, read_scales, inverse, rows, batch, k, 2 * H, 2 * H)
        acc = tl.dot(x, weight_tile(weight, k, cols, col_ok, 2 * H, OWN, 1), acc, input_precision="ieee")
    store_with_squares(blocks, at, warp_sums(acc) + added, mask, parts + tile * batch, rows, batch)


@triton.jit
def gate_kernel(
    old: tensor,
    keep: tensor,
    blocks: tensor,
    parts: tensor,
    scale: tensor,
    weight: tensor,
    bias: tensor,
    gates: tensor,
    new: tensor,
    read: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
    P: constexpr,
    OVERLAP: constexpr,
) -> None:
    """Three gates for each number of a block, and the new ``deter``: as it is kept, and as products read it."""
    await_earlier(OVERLAP)
    tile = tl.program_id(1)
    group = tile // triton.cdiv(OWN, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile % triton.cdiv(OWN, BN) * BN + tl.arange(0, BN)
    row_ok, col_ok = rows < batch, cols < OWN
    mask = row_ok[:, None] & col_ok[None, :]
    weight += group * (3 * OWN * OWN)
    bias += group * (3 * OWN) + cols
    at = rows[:, None] * (G * OWN) + group * OWN + cols[None, :]
    at_gates = rows[:, None] * (3 * G * OWN) + group * (3 * OWN) + cols[None, :]
    left = row_parts(parts, rows, batch, G * triton.cdiv(OWN, BN))
    reset_bias = tl.load(bias, mask=col_ok, other=0.0)
    candidate_bias = tl.load(bias + OWN, mask=col_ok, other=0.0)
    update_bias = tl.load(bias + 2 * OWN, mask=col_ok, other=0.0)
    before = tl.load(old + at, mask=mask, other=0.0) * tl.load(keep + rows, mask=row_ok, other=0.0)[:, None]
    inverse = inverse_size(left, G * OWN)[None, :, None]
    y, scale = blocks + group * OWN, scale + group * OWN
    reset = tl.zeros((P, BM, BN), tl.float32)
    candidate, update = reset, reset
    for start in range(0, OWN, BK):
        k = terms(start, BK, P)
        x = activated(y, scale, inverse, rows, batch, k, OWN, G * OWN)
        part = weight_tile(weight, k, cols, col_ok, OWN, 3 * OWN, 1)
        reset = tl.dot(x, part, reset, input_precision="ieee")
        part = weight_tile(weight + OWN, k, cols, col_ok, OWN, 3 * OWN, 1)
        candidate = tl.dot(x, part, candidate, input_precision="ieee")
        part = weight_tile(weight + 2 * OWN, k, cols, col_ok, OWN, 3 * OWN, 1)
        update = tl.dot(x, part, update, input_precision="ieee")
    reset_gate = tl.sigmoid(_kept_gate(gates + at_gates, reset, reset_bias, mask))
    value = tanh(reset_gate * _kept_gate(gates + at_gates + OWN, candidate, candidate_bias, mask))
    update_gate = tl.sigmoid(_kept_gate(gates + at_gates + 2 * OWN, update, update_bias, mask) - 1)
    value = before + update_gate * (value - before)
    tl.store(new + at, value, mask=mask)
    tl.store(read + at, value.to(read.dtype.element_ty), mask=mask)


@triton.jit
def _kept_gate(at: tensor, sums: tensor, bias: tensor, mask: tensor) -> tensor:
    """Rounded as it is kept."""
    rounded = (warp_sums(sums) + bias.to(tl.float32)[None, :]).to(at.dtype.element_ty)
    tl.store(at, rounded, mask=mask)
    return rounded.to(tl.float32)


@triton.jit
def seen_kernel(
    deter: tensor,
    tokens: tensor,
    weight: tensor,
    seen: tensor,
    parts: tensor,
    pieces: tensor,
    batch: tensor,
    G: constexpr,
    OWN: constexpr,
    H: constexpr,
    BM: constexpr,
    BH: constexpr,
    BK: constexpr,
    P: constexpr,
    T: constexpr,
    OVERLAP: constexpr,
) -> None:
    """The first layer of the posterior, perhaps in pieces."""
    await_earlier(OVERLAP)
    tiles: constexpr = triton.cdiv(H, BH)
    tile, piece = tl.program_id(1) % tiles, tl.program_id(1) // tiles
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile * BH + tl.arange(0, BH)
    col_ok = cols < H
    mask = (rows[:, None] < batch) & col_ok[None, :]
    at = rows[:, None] * H + cols[None, :]
    added = tl.load(tokens + at, mask=mask, other=0.0).to(tl.float32)
    acc = tl.zeros((P, BM, BH), tl.float32)
    acc = product(acc, deter, rows, batch, weight, cols, col_ok, piece * T, T, G * OWN, G * OWN, 1, G * OWN, BK, P)
    total = warp_sums(acc)
    if triton.cdiv(G * OWN, T) > 1:
        tl.store(pieces + piece * batch * H + at, total, mask=mask)
    else:
        store_with_squares(seen, at, total + added, mask, parts + tile * batch, rows, batch)


@triton.jit
def class_kernel(
    seen: tensor,
    parts: tensor,
    scale: tensor,
    weight: tensor,
    bias: tensor,
    noise: tensor,
    logits: tensor,
    stoch: tensor,
    mix: tensor,
    batch: tensor,
    HAS_NOISE: constexpr,
    H: constexpr,
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BH: constexpr,
    BK: constexpr,
    P: constexpr,
    OVERLAP: constexpr,
) -> None:
    """The last layer of the posterior, and a class of each variable drawn from it."""
    await_earlier(OVERLAP)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    index = tl.arange(0, V * CP)
    variable = tl.program_id(1) * V + index // CP
    cols = variable * C + index % CP
    col_ok = (variable < S) & (index % CP < C)
    mask = (rows[:, None] < batch) & col_ok[None, :]
    at = rows[:, None] * (S * C) + cols[None, :]
    left = row_parts(parts, rows, batch, triton.cdiv(H, BH))
    added = tl.load(bias + cols, mask=col_ok, other=0.0).to(tl.float32)
    own = tl.program_id(1) * V + tl.arange(0, V)
    inside = (rows[:, None] < batch) & (own[None, :] < S) & HAS_NOISE
    point = tl.load(noise + rows[:, None] * S + own[None, :], mask=inside, other=0.0)
    inverse = inverse_size(left, H)[None, :, None]
    acc = tl.zeros((P, BM, V * CP), tl.float32)
    for start in range(0, H, BK):
        k = terms(start, BK, P)
        x = activated(seen, scale, inverse, rows, batch, k, H, H)
        acc = tl.dot(x, weight_tile(weight, k, cols, col_ok, H, 1, H), acc, input_precision="ieee")
    rounded = (warp_sums(acc) + added[None, :]).to(logits.dtype.element_ty)
    tl.store(logits + at, rounded, mask=mask)
    probs = mix / C + (1 - mix) * class_probs(rounded.to(tl.float32), C, V, CP)
    lane = tl.arange(0, CP)[None, None, :]
    if HAS_NOISE:
        passed = (tl.cumsum(probs, 2) <= point[:, :, None]) & (lane < C - 1)
        chosen = tl.sum(passed.to(tl.int32), 2)
    else:
        chosen = tl.argmax(tl.where(lane < C, probs, -1.0), 2).to(tl.int32)
    hot = (lane == chosen[:, :, None]).to(stoch.dtype.element_ty)
    tl.store(stoch + at, tl.reshape(hot, (BM, V * CP)), mask=mask)
