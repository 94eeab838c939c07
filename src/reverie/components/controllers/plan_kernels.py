"""The kernels of a plan: layers with the norm in front of them, and what is done with their results.

A device that makes a plan does little arithmetic in a long chain, so what counts is how many kernels follow each other
and how long each waits for memory. A layer leaves its product as it is, and sums of it; whoever reads that next works
out the norm and the activation of the rows it needs, each program anew.

``rows`` are plans, those of an environment behind each other; ``N`` are environments. Where ``OVERLAP``, a kernel
begins before the one ahead of it has ended: only weights, and which members are asked, may be read before
``await_earlier``.
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
_LARGEST = tl.constexpr(3.4028234663852886e38)


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
    mean = tl.zeros((BM,), tl.float32)
    inverse = tl.zeros((BM,), tl.float32)
    if KIND != PLAIN:
        part = tl.arange(0, LP)
        at = sums + group * sums_group + 2 * part[None, :] * rows + row[:, None]
        is_part = row_ok[:, None] & (part < PARTS)[None, :]
        mean = tl.sum(tl.load(at, mask=is_part, other=0.0), 1) / K
        square = tl.sum(tl.load(at + rows, mask=is_part, other=0.0), 1) / K
        inverse = tl.rsqrt(tl.maximum(square - mean * mean, 0.0) + _EPSILON)
    for start in range(0, K, BK):
        k = start + tl.arange(0, BK)
        values = tl.load(x + k[None, :], mask=row_ok[:, None] & (k < K)[None, :], other=0.0)
        tile = tl.load(weight + k[None, :], mask=col_ok[:, None] & (k < K)[None, :], other=0.0)
        if KIND != PLAIN:
            gain = tl.load(scale + k, mask=k < K, other=0.0)
            offset = tl.load(shift + k, mask=k < K, other=0.0)
            normed = (values.to(tl.float32) - mean[:, None]) * inverse[:, None] * gain[None, :] + offset[None, :]
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
    """Mish, or a softmax in each group of ``DIM``. What lies beyond a row meets no weight."""
    if KIND == MISH:
        power = tl.exp(tl.minimum(normed, _LARGE))
        share = power * (power + 2.0)
        result = normed * share / (share + 2.0)
    else:
        groups = tl.reshape(normed, (normed.shape[0], normed.shape[1] // DIM, DIM))
        powers = tl.exp(groups - tl.max(groups, 2, keep_dims=True))
        result = tl.reshape(powers / tl.sum(powers, 2, keep_dims=True), (normed.shape[0], normed.shape[1]))
    return result


@triton.jit
def action_kernel(
    raw: tensor,
    noise: tensor,
    action: tensor,
    rows: tensor,
    lead: tensor,
    stride: tensor,
    low: tensor,
    span: tensor,
    A: constexpr,
    AP: constexpr,
    BM: constexpr,
    OVERLAP: constexpr,
) -> None:
    """What the policy does: a normal behind a tanh, from means and log-deviations ``raw`` [rows, 2 * A]."""
    row, a = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, AP)
    mask = (row < rows)[:, None] & (a < A)[None, :]
    await_earlier(OVERLAP)
    at = row[:, None] * A + a[None, :]
    mean = tl.load(raw + row[:, None] * (2 * A) + a[None, :], mask=mask, other=0.0).to(tl.float32)
    spread = tl.load(raw + row[:, None] * (2 * A) + A + a[None, :], mask=mask, other=0.0).to(tl.float32)
    deviation = tl.exp(low + 0.5 * span * (_tanh(spread) + 1.0))
    drawn = _tanh(mean + tl.load(noise + at, mask=mask, other=0.0) * deviation)
    tl.store(action + (row // lead * stride + row % lead)[:, None] * A + a[None, :], drawn, mask=mask)


@triton.jit
def _tanh(x: tensor) -> tensor:
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def returns_kernel(
    rewards: tensor,
    values: tensor,
    bins: tensor,
    returns: tensor,
    rows: tensor,
    discount: tensor,
    H: constexpr,
    CP: constexpr,
    B: constexpr,
    BP: constexpr,
    IS_CAUTIOUS: constexpr,
    BM: constexpr,
    OVERLAP: constexpr,
) -> None:
    """Discounted rewards [H, rows, B] and behind them what two critics say [2, rows, B]: the mean or the smaller. Each
    is a mean over bins in symlog space. ``CP`` is the next power of two of all these numbers of a row.
    """
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    await_earlier(OVERLAP)
    # All numbers of a row side by side: their sums wait for memory once.
    number, b = tl.arange(0, CP), tl.arange(0, BP)
    is_reward = number < H
    first = tl.where(is_reward, 0, -H * rows * B)  # values lie elsewhere
    at = first[None, :] + number[None, :] * (rows * B) + row[:, None] * B
    is_there = (row < rows)[:, None] & (number < H + 2)[None, :]
    mask = is_there[:, :, None] & (b < B)[None, None, :]
    from_rewards = mask & is_reward[None, :, None]
    from_values = mask & (number >= H)[None, :, None]
    reward = tl.load(rewards + at[:, :, None] + b[None, None, :], mask=from_rewards, other=0.0).to(tl.float32)
    value = tl.load(values + at[:, :, None] + b[None, None, :], mask=from_values, other=0.0).to(tl.float32)
    logits = tl.where((b < B)[None, None, :], reward + value, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, 2, keep_dims=True))
    centres = tl.load(bins + b, mask=b < B, other=0.0)
    squashed = tl.sum(powers * centres[None, None, :], 2) / tl.sum(powers, 2)
    size = tl.exp(tl.abs(squashed)) - 1.0
    found = tl.where(squashed < 0, -size, size)
    weight = tl.exp2(tl.minimum(number, H).to(tl.float32) * tl.log2(discount))
    total = tl.sum(tl.where(is_reward[None, :], found * weight[None, :], 0.0), 1)
    is_value = (number >= H) & (number < H + 2)
    if IS_CAUTIOUS:
        believed = tl.min(tl.where(is_value[None, :], found, float("inf")), 1)
    else:
        believed = tl.sum(tl.where(is_value[None, :], 0.5 * found, 0.0), 1)
    total += believed * tl.exp2(H * tl.log2(discount))
    total = tl.where(total == total, tl.minimum(tl.maximum(total, -_LARGEST), _LARGEST), 0.0)
    tl.store(returns + row, total, mask=row < rows)


@triton.jit
def rank_kernel(
    returns: tensor,
    rank: tensor,
    weight: tensor,
    temperature: tensor,
    S: constexpr,
    E: constexpr,
    BM: constexpr,
    BK: constexpr,
    OVERLAP: constexpr,
) -> None:
    """Each plan's place among the ``S`` of its environment, and what it weighs if it is among the first ``E``."""
    first, own = tl.program_id(0) * S, tl.program_id(1) * BM + tl.arange(0, BM)
    await_earlier(OVERLAP)
    mine = tl.load(returns + first + own, mask=own < S, other=float("-inf"))
    best = tl.full((BK,), float("-inf"), tl.float32)
    ahead = tl.zeros((BM, BK), tl.int32)
    for start in range(0, S, BK):
        other = start + tl.arange(0, BK)
        theirs = tl.load(returns + first + other, mask=other < S, other=float("-inf"))
        best = tl.maximum(best, theirs)
        is_tied = (theirs[None, :] == mine[:, None]) & (other[None, :] < own[:, None])
        ahead += ((theirs[None, :] > mine[:, None]) | is_tied).to(tl.int32)
    place, best = tl.sum(ahead, 1), tl.max(best, 0)
    power = tl.exp(temperature * (mine - best))
    tl.store(rank + first + own, place, mask=own < S)
    tl.store(weight + first + own, tl.where(place < E, power, 0.0), mask=own < S)


@triton.jit
def draw_kernel(
    weight: tensor,
    noise: tensor,
    action: tensor,
    mean: tensor,
    std: tensor,
    min_std: tensor,
    max_std: tensor,
    S: constexpr,
    SP: constexpr,
    P: constexpr,
    A: constexpr,
    AP: constexpr,
    LEARNS: constexpr,
    DRAWS: constexpr,
    OVERLAP: constexpr,
) -> None:
    """One step of the plans of one environment: learn ``mean`` and ``std`` of its actions from the best, draw anew.

    The first ``P`` plans are the policy's and stay.
    """
    block = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
    s, a = tl.arange(0, SP), tl.arange(0, AP)
    at = action + (block * S + s)[:, None] * A + a[None, :]
    await_earlier(OVERLAP)
    if LEARNS:
        share = tl.load(weight + tl.program_id(0) * S + s, mask=s < S, other=0.0)
        share = share / tl.sum(share)
        total = tl.sum(share) + 1e-9
        is_elite = (share > 0)[:, None] & (a < A)[None, :]  # what is no number elsewhere counts nowhere
        tried = tl.load(at, mask=is_elite, other=0.0)
        centre = tl.sum(share[:, None] * tried, 0) / total
        away = tried - centre[None, :]
        width = tl.sqrt(tl.sum(share[:, None] * away * away, 0) / total)
        width = tl.minimum(tl.maximum(width, min_std), max_std)
        tl.store(mean + block * A + a, centre, mask=a < A)
        tl.store(std + block * A + a, width, mask=a < A)
    else:
        centre = tl.load(mean + block * A + a, mask=a < A, other=0.0)
        width = tl.load(std + block * A + a, mask=a < A, other=0.0)
    if DRAWS:
        mask = ((s >= P) & (s < S))[:, None] & (a < A)[None, :]
        drawn = tl.load(noise + (block * (S - P) + s - P)[:, None] * A + a[None, :], mask=mask, other=0.0)
        drawn = centre[None, :] + width[None, :] * drawn
        tl.store(at, tl.minimum(tl.maximum(drawn, -1.0), 1.0), mask=mask)


@triton.jit
def choice_kernel(
    rank: tensor,
    weight: tensor,
    choice: tensor,
    action: tensor,
    chosen: tensor,
    S: constexpr,
    SP: constexpr,
    E: constexpr,
    A: constexpr,
    AP: constexpr,
    OVERLAP: constexpr,
) -> None:
    """The first action of one of the best plans, drawn by weight: ``choice`` is exponential noise, in their order."""
    env, s, a = tl.program_id(0), tl.arange(0, SP), tl.arange(0, AP)
    await_earlier(OVERLAP)
    place = tl.load(rank + env * S + s, mask=s < S, other=E)
    noise = tl.load(choice + env * E + place, mask=place < E, other=1.0)
    share = tl.load(weight + env * S + s, mask=place < E, other=0.0)
    key = tl.where(place < E, tl.log(share) - tl.log(noise), float("-inf"))
    first = tl.min(tl.where(key == tl.max(key, 0), place, E), 0)
    sample = tl.sum(tl.where(place == first, s, 0), 0)
    taken = tl.load(action + (env * S + sample) * A + a, mask=a < A, other=0.0)
    tl.store(chosen + env * A + a, taken, mask=a < A)
