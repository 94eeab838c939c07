"""The kernels of one step of DreamerV3's walk: five, each a product with all that surrounds it.

Sizes are those of ``rssm_tape.Weights``: ``G`` blocks of ``OWN``, ``H`` hidden, ``S`` variables of ``C`` classes. A
program that draws classes owns ``V`` variables in columns of ``CP``, the next power of two.
"""

from __future__ import annotations

import triton

from reverie.components.representation_learners.rssm_kernel_parts import (
    activated,
    activated_product,
    class_probs,
    constexpr,
    inverse_size,
    product,
    store_with_squares,
    tanh,
    tensor,
    tl,
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
    """Two linear layers side by side: of the old ``deter`` and of the old ``stoch``."""
    tile = tl.program_id(1)
    half = tile // triton.cdiv(H, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile % triton.cdiv(H, BN) * BN + tl.arange(0, BN)
    col_ok = cols < H
    acc = tl.zeros((BM, BN), tl.float32)
    if half == 0:
        acc = product(acc, deter, rows, batch, deter_weight, cols, col_ok, G * OWN, G * OWN, 1, G * OWN, BK)
        bias = tl.load(deter_bias + cols, mask=col_ok, other=0.0)
    else:
        acc = product(acc, stoch, rows, batch, stoch_weight, cols, col_ok, S * C, S * C, 1, S * C, BK)
        bias = tl.load(stoch_bias + cols, mask=col_ok, other=0.0)
    # A row of zeros times the weights is zero, so that keeping can wait until after the product.
    acc = acc * tl.load(keep + rows, mask=rows < batch, other=0.0)[:, None] + bias.to(tl.float32)[None, :]
    mask = (rows[:, None] < batch) & col_ok[None, :]
    at = rows[:, None] * (2 * H) + half * H + cols[None, :]
    store_with_squares(reads, at, acc, mask, parts + tile * batch, rows, batch)


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
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
) -> None:
    """Every block reads its part of the old ``deter``, and what was read of all of it."""
    tile = tl.program_id(1)
    group = tile // triton.cdiv(OWN, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile % triton.cdiv(OWN, BN) * BN + tl.arange(0, BN)
    col_ok = cols < OWN
    weight += group * ((OWN + 2 * H) * OWN)
    acc = tl.zeros((BM, BN), tl.float32)
    acc = product(acc, deter + group * OWN, rows, batch, weight, cols, col_ok, OWN, G * OWN, OWN, 1, BK)
    acc = acc * tl.load(keep + rows, mask=rows < batch, other=0.0)[:, None]
    for half in tl.static_range(2):
        inverse = inverse_size(read_parts + half * triton.cdiv(H, BN) * batch, rows, batch, triton.cdiv(H, BN), H)
        y, scale, tail = reads + half * H, read_scales + half * H, weight + (OWN + half * H) * OWN
        acc = activated_product(acc, y, scale, inverse, rows, batch, tail, cols, col_ok, H, 2 * H, OWN, 1, BK)
    mask = (rows[:, None] < batch) & col_ok[None, :]
    at = rows[:, None] * (G * OWN) + group * OWN + cols[None, :]
    acc += tl.load(action + at, mask=mask, other=0.0).to(tl.float32)
    store_with_squares(blocks, at, acc, mask, parts + tile * batch, rows, batch)


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
    H: constexpr,
    S: constexpr,
    C: constexpr,
    V: constexpr,
    CP: constexpr,
    BM: constexpr,
    BN: constexpr,
    BK: constexpr,
) -> None:
    """Three gates for each number of a block, and the new ``deter``: as it is kept, and as products read it."""
    tile = tl.program_id(1)
    group = tile // triton.cdiv(OWN, BN)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile % triton.cdiv(OWN, BN) * BN + tl.arange(0, BN)
    col_ok = cols < OWN
    mask = (rows[:, None] < batch) & col_ok[None, :]
    inverse = inverse_size(parts, rows, batch, G * triton.cdiv(OWN, BN), G * OWN)
    weight += group * (3 * OWN * OWN)
    bias += group * (3 * OWN)
    at_gates = rows[:, None] * (3 * G * OWN) + group * (3 * OWN) + cols[None, :]
    y, scale = blocks + group * OWN, scale + group * OWN
    reset = tl.zeros((BM, BN), tl.float32)
    candidate, update = reset, reset
    for start in range(0, OWN, BK):
        k = start + tl.arange(0, BK)
        x = activated(y, scale, inverse, rows, batch, k, OWN, G * OWN)
        at = weight + k[:, None] * (3 * OWN) + cols[None, :]
        inside = (k[:, None] < OWN) & col_ok[None, :]
        reset = tl.dot(x, tl.load(at, mask=inside, other=0.0), reset, input_precision="ieee")
        candidate = tl.dot(x, tl.load(at + OWN, mask=inside, other=0.0), candidate, input_precision="ieee")
        update = tl.dot(x, tl.load(at + 2 * OWN, mask=inside, other=0.0), update, input_precision="ieee")
    reset = _kept_gate(gates + at_gates, reset, bias + cols, mask, col_ok)
    candidate = _kept_gate(gates + at_gates + OWN, candidate, bias + OWN + cols, mask, col_ok)
    update = tl.sigmoid(_kept_gate(gates + at_gates + 2 * OWN, update, bias + 2 * OWN + cols, mask, col_ok) - 1)
    at = rows[:, None] * (G * OWN) + group * OWN + cols[None, :]
    before = tl.load(old + at, mask=mask, other=0.0) * tl.load(keep + rows, mask=rows < batch, other=0.0)[:, None]
    value = before + update * (tanh(tl.sigmoid(reset) * candidate) - before)
    tl.store(new + at, value, mask=mask)
    tl.store(read + at, value.to(read.dtype.element_ty), mask=mask)


@triton.jit
def _kept_gate(at: tensor, values: tensor, bias: tensor, mask: tensor, col_ok: tensor) -> tensor:
    """Rounded as it is kept."""
    values += tl.load(bias, mask=col_ok, other=0.0).to(tl.float32)[None, :]
    rounded = values.to(at.dtype.element_ty)
    tl.store(at, rounded, mask=mask)
    return rounded.to(tl.float32)


@triton.jit
def seen_kernel(
    deter: tensor,
    tokens: tensor,
    weight: tensor,
    seen: tensor,
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
    """The first layer of the posterior."""
    tile = tl.program_id(1)
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tile * BN + tl.arange(0, BN)
    col_ok = cols < H
    mask = (rows[:, None] < batch) & col_ok[None, :]
    at = rows[:, None] * H + cols[None, :]
    acc = tl.load(tokens + at, mask=mask, other=0.0).to(tl.float32)
    acc = product(acc, deter, rows, batch, weight, cols, col_ok, G * OWN, G * OWN, 1, G * OWN, BK)
    store_with_squares(seen, at, acc, mask, parts + tile * batch, rows, batch)


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
    """The last layer of the posterior, and a class of each variable drawn from it."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    index = tl.arange(0, V * CP)
    variable = tl.program_id(1) * V + index // CP
    cols = variable * C + index % CP
    col_ok = (variable < S) & (index % CP < C)
    mask = (rows[:, None] < batch) & col_ok[None, :]
    at = rows[:, None] * (S * C) + cols[None, :]
    inverse = inverse_size(parts, rows, batch, triton.cdiv(H, BN), H)
    acc = tl.zeros((BM, V * CP), tl.float32)
    acc = activated_product(acc, seen, scale, inverse, rows, batch, weight, cols, col_ok, H, H, 1, H, BK)
    acc += tl.load(bias + cols, mask=col_ok, other=0.0).to(tl.float32)[None, :]
    rounded = acc.to(logits.dtype.element_ty)
    tl.store(logits + at, rounded, mask=mask)
    probs = mix / C + (1 - mix) * class_probs(rounded.to(tl.float32), C, V, CP)
    lane = tl.arange(0, CP)[None, None, :]
    if HAS_NOISE:
        own = tl.program_id(1) * V + tl.arange(0, V)
        mask_own = (rows[:, None] < batch) & (own[None, :] < S)
        point = tl.load(noise + rows[:, None] * S + own[None, :], mask=mask_own, other=0.0)
        passed = (tl.cumsum(probs, 2) <= point[:, :, None]) & (lane < C - 1)
        chosen = tl.sum(passed.to(tl.int32), 2)
    else:
        chosen = tl.argmax(tl.where(lane < C, probs, -1.0), 2).to(tl.int32)
    hot = (lane == chosen[:, :, None]).to(stoch.dtype.element_ty)
    tl.store(stoch + at, tl.reshape(hot, (BM, V * CP)), mask=mask)
