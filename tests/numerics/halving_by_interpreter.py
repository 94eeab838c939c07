"""Started by a test with TRITON_INTERPRET=1: kernels of an encoder's first layer beside torch's operations, as JSON.

Triton decides when a kernel is defined whether it is interpreted, so this must not happen in the process of the tests.
"""

from __future__ import annotations

import json

import torch
from plain_halving import Layer, distance, made_up, outcome, plain_halving, share_of_ties
from torch import Tensor
from torch.nn import functional as F

from reverie.components.networks import halved_convolution, halved_launches
from reverie.components.networks.halved_convolution import conv_halved_activated

LAYERS = {
    "small": Layer(),
    "as large as in use": Layer(pictures=1, height=16, width=16, outputs=32),
    "nothing is a multiple of a tile": Layer(pictures=3, height=14, width=22, channels=2, outputs=37),
    "grey": Layer(channels=1, outputs=20),
    "four channels": Layer(channels=4, outputs=5),
    "one pixel of the small map": Layer(pictures=1, height=2, width=2),
    "kernel of seven": Layer(kernel=7),
    "kernel of one": Layer(kernel=1, outputs=3),
    "corners that tie": Layer(pictures=3, has_ties=True),
    "grey corners that tie": Layer(pictures=1, height=10, channels=1, has_ties=True),
}


def distances(layer: Layer) -> dict[str, float]:
    """Of the value and each gradient from that of torch's operations."""
    parts = made_up(layer)
    plain, ours = outcome(plain_halving, parts), outcome(conv_halved_activated, parts)
    return {name: distance(ours[name], value) for name, value in plain.items()}


def distances_in_float16(layer: Layer) -> dict[str, float]:
    # The interpreter multiplies the bits of bfloat16 as if they were integers. The other narrow type goes the same way.
    with torch.autocast("cpu", dtype=torch.float16):
        return distances(layer)


def of_two_calls(layer: Layer) -> bool:
    one, other = (outcome(conv_halved_activated, made_up(layer)) for _ in range(2))
    return all(torch.equal(one[name], value) for name, value in other.items())


def with_numbers_missing() -> dict[str, list[bool]]:
    """Where the largest of a square is not a number: ours and torch's."""
    picture, weight, bias, scale = made_up(Layer(pictures=1, outputs=1, channels=1, kernel=1))
    picture[0, 3, 6], picture[0, 4, 4] = float("nan"), float("nan")
    both = (form(picture, weight, bias, scale) for form in (conv_halved_activated, plain_halving))
    return dict(zip(("ours", "torch's"), (one.isnan().flatten().tolist() for one in both), strict=True))


def checked_by_torch() -> dict[str, str]:
    """Both operations: nothing is written to what they read, and results lie as tracing was told."""
    x, weight, bias, scale = (one.detach() for one in made_up(Layer(channels=2, outputs=5)))
    first = F.pad(x, (0, 0, 2, 2, 2, 2)), halved_convolution.corner_weights(weight), bias, scale
    gradient, largest, winner = halved_convolution._halved(*first)
    second = gradient, *first[:2], scale, largest, winner
    tests = "test_schema", "test_faketensor"
    torch.library.opcheck(halved_convolution._halved, first, test_utils=tests)
    return torch.library.opcheck(halved_convolution._halved_gradients, second, test_utils=tests)


def last_wins(one: Tensor) -> Tensor:
    """Corners in the opposite order: the same maximum, and of equal ones another learns."""
    return right(one).flip(0)


def transposed(one: Tensor) -> Tensor:
    """Rows of a patch as its columns."""
    parts = right(one)
    return parts.unflatten(2, (parts.shape[1], -1)).transpose(1, 2).flatten(2, 3)


torch.set_num_threads(1)
found: dict[str, object] = {name: distances(layer) for name, layer in LAYERS.items()}
halved_launches._PROGRAMS = 3
found["in many pieces"] = distances(Layer(pictures=5, height=16, width=16, outputs=70))
found["in float16"] = distances_in_float16(Layer(pictures=3, height=16, outputs=37))
found["ties in float16"] = distances_in_float16(LAYERS["corners that tie"])
found["share of ties"] = share_of_ties(made_up(LAYERS["corners that tie"]))
found["twice the same"] = of_two_calls(Layer(pictures=4))
found["checked by torch"] = checked_by_torch()
found["not a number"] = with_numbers_missing()
right, halved_convolution.corner_weights = halved_convolution.corner_weights, last_wins
found["beside corners in the opposite order"] = distances(LAYERS["corners that tie"])
halved_convolution.corner_weights = transposed
found["beside transposed patches"] = distances(Layer())
print(json.dumps(found))
