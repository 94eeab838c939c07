"""Started by a test with TRITON_INTERPRET=1: the kernel of weights' gradients beside torch's operations, as JSON.

Triton decides when a kernel is defined whether it is interpreted, so this must not happen in the process of the tests.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from plain_same_conv import Layer, distance, made_up, outcome, plain_same_conv

from reverie.components.networks import weight_gradient, weight_gradient_launch
from reverie.components.networks.weight_gradient_launch import Tiles

LAYERS = {
    "small": Layer(),
    "nothing is a multiple of a tile": Layer(pictures=3, height=7, width=11, inputs=19, outputs=37),
    "one picture": Layer(pictures=1, height=5, width=9, inputs=24, outputs=40),
    "kernel of three": Layer(pictures=3, height=6, width=10, inputs=24, size=3),
    "kernel of seven": Layer(pictures=1, inputs=5, outputs=3, size=7),
    "maps smaller than the kernel": Layer(pictures=7, height=2, width=1),
    "one pixel": Layer(pictures=1, height=1, width=1),
}
NARROW = {
    "in float16": Layer(pictures=3, height=7, width=9, inputs=24, outputs=40),
    "128 and 64 columns in float16": Layer(pictures=1, inputs=8, outputs=152, size=3),
    "several tiles of columns in float16": Layer(pictures=1, inputs=8, outputs=200, size=3),
}


def distances(layer: Layer) -> dict[str, float]:
    """Of the value and each gradient from that of torch's operations."""
    parts = made_up(layer)
    plain, ours = outcome(plain_same_conv, parts), outcome(weight_gradient.same_conv, parts)
    return {name: distance(ours[name], value) for name, value in plain.items()}


def distances_in_float16(layer: Layer) -> dict[str, float]:
    # The interpreter multiplies the bits of bfloat16 as if they were integers. The other narrow type goes the same way.
    with torch.autocast("cpu", dtype=torch.float16):
        return distances(layer)


def of_two_calls(layer: Layer) -> bool:
    one, other = (outcome(weight_gradient.same_conv, made_up(layer)) for _ in range(2))
    return all(torch.equal(one[name], value) for name, value in other.items())


def checked_by_torch() -> dict[str, str]:
    """Nothing is written to what it reads, and its result lies as tracing was told."""
    inputs = torch.randn(2, 5, 7, 16), torch.randn(2, 5, 7, 24), 3
    return torch.library.opcheck(
        weight_gradient._weight_gradient, inputs, test_utils=("test_schema", "test_faketensor")
    )


def one_row_further(kernel: Any, programs: int, *arguments: Any, **names: Any) -> None:
    """The same launch on pictures that are moved by one row."""
    pictures, *others = arguments
    right(kernel, programs, pictures.roll(1, 1), *others, **names)


def in_a_picture_twice_as_high(kernel: Any, programs: int, *arguments: Any, **names: Any) -> None:
    """So that every second picture runs into the one before."""
    right(kernel, programs, *arguments, **names | {"HEIGHT": 2 * names["HEIGHT"]})


torch.set_num_threads(1)
found: dict[str, object] = {name: distances(layer) for name, layer in LAYERS.items()}
found |= {name: distances_in_float16(layer) for name, layer in NARROW.items()}
weight_gradient_launch.chosen_tiles = lambda outputs, dtype: Tiles(terms=32, outputs=16, more_outputs=16, pixels=16)
weight_gradient_launch._LEAST_TURNS = 2
splits = weight_gradient_launch.chosen_splits(1, 13)
found["splits"] = splits
found["in many pieces"] = distances(Layer(pictures=5, height=6, width=7, outputs=40, size=3))
found["twice the same"] = of_two_calls(Layer(pictures=4, size=3))
found["checked by torch"] = checked_by_torch()
right = weight_gradient_launch._run
weight_gradient_launch._run = one_row_further
found["beside pictures moved by a row"] = distances(Layer())
weight_gradient_launch._run = in_a_picture_twice_as_high
found["beside pictures without a border"] = distances(Layer())
print(json.dumps(found))
