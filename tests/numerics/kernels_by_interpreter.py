"""Started by a test with TRITON_INTERPRET=1: kernels of DreamerV3's walk beside the operations of torch, as JSON.

Triton decides when a kernel is defined whether it is interpreted, so this must not happen in the process of the tests.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from plain_walk import Walk, made_up, outcome
from torch import Tensor

from reverie.components.representation_learners import rssm_by_hand
from reverie.components.representation_learners.rssm_by_hand import PlainSteps
from reverie.components.representation_learners.rssm_fused import FusedSteps

WALKS = {
    "small": Walk(length=3),
    "one step": Walk(length=1),
    "one block": Walk(length=2, blocks=1, deter=24, hidden=16),
    "nothing is a multiple of a tile": Walk(
        length=2, size=17, blocks=2, deter=2 * 21, hidden=19, stoch=5, classes=6, unimix=0.1
    ),
    "many classes": Walk(length=2, stoch=2, classes=33),
    "one class": Walk(length=2, classes=1),
    "most likely classes": Walk(length=2, has_noise=False),
}


def distances(walk: Walk, dtype: torch.dtype = torch.float32, *, depth: int = 16, **cut: Any) -> dict[str, float]:
    """Of each result and gradient from that of torch's operations, as a share of its size."""
    inputs, weights = made_up(walk, torch.float32)
    inputs = inputs._replace(action=inputs.action.to(dtype), tokens=inputs.tokens.to(dtype))
    ways = PlainSteps(), FusedSteps(depth=depth, **cut)
    plain, fused = (outcome(walk, inputs, weights, steps) for steps in ways)
    return {name: _distance(fused[name], value) for name, value in plain.items()}


def _distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-12))


def across(old: Tensor, gates: Tensor) -> Tensor:
    """The wrong split: three parts of the whole vector instead of three in each block."""
    flat = gates.flatten(-2).unflatten(-1, (3, *old.shape[-2:])).transpose(-3, -2).flatten(-2)
    return right(old, flat)


torch.set_num_threads(1)
found = {name: distances(walk) for name, walk in WALKS.items()}
found["sums in one piece"] = distances(Walk(length=2), depth=128)
found["sums in pieces"] = distances(Walk(length=2, deter=128, hidden=48), terms=32)
# Of 105 terms the last piece has 9; columns of 16 and 8 leave a rest everywhere.
uneven = Walk(length=1, size=17, blocks=3, deter=105, hidden=19, stoch=5, classes=6)
found["pieces that are not alike"] = distances(uneven, terms=32, columns=16)
found["wide tiles"] = distances(Walk(length=2, deter=100, hidden=70), columns=64)
found["deep tiles"] = distances(Walk(length=2, deter=100, hidden=70), depth=32)
# The interpreter multiplies the bits of bfloat16 as if they were integers. The other narrow type takes the same ways.
found["in float16"] = distances(Walk(length=2), torch.float16)
right, rssm_by_hand.gated = rssm_by_hand.gated, across
found["beside gates split across blocks"] = distances(Walk(length=1))
found["beside the same with one block"] = distances(Walk(length=1, blocks=1))
print(json.dumps(found))
