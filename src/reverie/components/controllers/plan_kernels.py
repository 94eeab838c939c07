"""The kernels of a plan beside its layers: the policy's actions, what plans are worth, what is learned from the best.

``rows`` are plans, those of an environment behind each other; the first index of a grid is the environment where each
has its own. Kernels overlap as those of the layers do.
"""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import await_earlier, constexpr, tensor, tl

_LARGEST = tl.constexpr(3.4028234663852886e38)


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
    OVERLAP: constexpr,
) -> None:
    """For one row: discounted rewards [H, rows, B], and behind them what two critics say [2, rows, B]: the mean or the
    smaller. Each is a mean over bins in symlog space. ``CP`` is the next power of two of all these numbers.
    """
    row = tl.program_id(0)
    await_earlier(OVERLAP)
    # All numbers side by side: their sums wait for memory once.
    number, b = tl.arange(0, CP), tl.arange(0, BP)
    is_reward, is_value = number < H, (number >= H) & (number < H + 2)
    at = (tl.where(is_reward, number, number - H) * rows + row)[:, None] * B + b[None, :]  # values lie elsewhere
    is_bin = (b < B)[None, :]
    reward = tl.load(rewards + at, mask=is_reward[:, None] & is_bin, other=0.0).to(tl.float32)
    value = tl.load(values + at, mask=is_value[:, None] & is_bin, other=0.0).to(tl.float32)
    logits = tl.where(is_bin, reward + value, float("-inf"))
    powers = tl.exp(logits - tl.max(logits, 1, keep_dims=True))
    centres = tl.load(bins + b, mask=b < B, other=0.0)
    squashed = tl.sum(powers * centres[None, :], 1) / tl.sum(powers, 1)
    size = tl.exp(tl.abs(squashed)) - 1.0
    found = tl.where(squashed < 0, -size, size)
    weight = tl.exp2(tl.minimum(number, H).to(tl.float32) * tl.log2(discount))
    total = tl.sum(tl.where(is_reward, found * weight, 0.0), 0)
    if IS_CAUTIOUS:
        believed = tl.min(tl.where(is_value, found, float("inf")), 0)
    else:
        believed = tl.sum(tl.where(is_value, 0.5 * found, 0.0), 0)
    total += believed * tl.exp2(H * tl.log2(discount))
    total = tl.where(total == total, tl.minimum(tl.maximum(total, -_LARGEST), _LARGEST), 0.0)
    tl.store(returns + row, total)


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
