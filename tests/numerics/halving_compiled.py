"""Started by a test: compiles the kernels of an encoder's first layer for a Hopper GPU, which need not be here.

The interpreter takes what the compiler refuses. Shapes are those in use, and the launches' own choice of sizes.
"""

from __future__ import annotations

import json
import re
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from reverie.components.networks import halved_convolution, halved_launches

KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int8: "*i8", int: "i32"}
LAYERS = {
    "12m": (3, 32),
    "200m": (3, 128),
    "400m": (3, 192),
    "1m in grey": (1, 8),
    "four channels": (4, 32),
    "widest": (3, 256),
    "most": (4, 128),
    "most in float32": (4, 64),
}
"""Channels of the picture and of the result."""
compiled: dict[str, dict[str, int]] = {}


def run(kernel: Any, grid: tuple[int, int], *arguments: Any, **names: Any) -> None:
    """In place of a launch."""
    sizes = dict(names)
    options = {key: sizes.pop(key) for key in ("num_warps", "num_stages") if key in sizes}
    signature: dict[str, str] = {}
    aligned = {}
    for place, value in enumerate(arguments):
        signature[kernel.arg_names[place]] = KINDS[value.dtype if isinstance(value, Tensor) else type(value)]
        aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature | dict.fromkeys(sizes, "constexpr"), sizes, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text = made.asm["ptx"]
    compiled[f"{kernel.__name__} {case}"] = {
        "shared_bytes": made.metadata.shared,
        "matrix_products": len(re.findall(r"wgmma\.mma_async|mma\.sync", text)),
        "programs": grid[0] * grid[1],
    }


setattr(halved_launches, "_run", run)  # noqa: B010
for dtype in (torch.bfloat16, torch.float32):
    for layer, (channels, outputs) in LAYERS.items():
        if not halved_convolution._fits(torch.empty(outputs, channels, 5, 5), dtype):
            continue
        case = f"{layer} {dtype}"
        pictures = torch.empty(1024, 68, 68, channels, dtype=dtype, device="meta")
        weights, bias = (torch.empty(*shape, outputs, device="meta") for shape in ((4, 6, 6 * channels), ()))
        activated, largest, winner = halved_launches.halved(pictures, weights, bias, bias)
        halved_launches.halved_gradients(activated, pictures, weights, bias, largest, winner)
print(json.dumps(compiled))
