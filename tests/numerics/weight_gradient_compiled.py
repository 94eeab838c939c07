"""Started by a test: compiles the kernel of weights' gradients for a Hopper GPU, which need not be here.

The interpreter takes what the compiler refuses. Shapes are those in use, and the launch's own choice of tiles.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from reverie.components.networks import weight_gradient_launch

KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", int: "i32"}
LAYERS = {
    "12m": ((32, 32, 48), (16, 48, 64), (8, 64, 64)),
    "50m": ((32, 64, 96), (16, 96, 128), (8, 128, 128)),
    "100m": ((32, 96, 144), (16, 144, 192), (8, 192, 192)),
    "200m": ((32, 128, 192), (16, 192, 256), (8, 256, 256)),
    "400m": ((32, 192, 288), (16, 288, 384), (8, 384, 384)),
}
"""Height of the map, channels of the picture and of the result."""
compiled: dict[str, dict[str, object]] = {}


def run(kernel: Any, programs: int, *arguments: Any, **names: Any) -> None:
    """In place of a launch."""
    sizes = dict(names)
    options = {key: sizes.pop(key) for key in ("num_warps", "num_stages")}
    signature: dict[str, str] = {}
    aligned = {}
    for place, value in enumerate(arguments):
        signature[kernel.arg_names[place]] = KINDS[value.dtype if isinstance(value, Tensor) else type(value)]
        if isinstance(value, Tensor) or value % 16 == 0:
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature | dict.fromkeys(sizes, "constexpr"), sizes, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text = made.asm["ptx"]
    compiled[case] = {
        "shared_bytes": made.metadata.shared,
        "matrix_products": len(re.findall(r"wgmma\.mma_async", text)),
        "copies_of_16_bytes": len(re.findall(r"cp\.async\.cg", text)),
        **told_by_assembler(text),
        "programs": programs,
        "options": options,
        "sizes": sizes,
    }


def told_by_assembler(text: str) -> dict[str, int]:
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(text)
        file.flush()
        command = [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", file.name, "-o", "/dev/null"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    spilled = re.search(r"(\d+) bytes spill stores", said)
    registers = re.search(r"Used (\d+) registers", said)
    assert spilled is not None
    assert registers is not None
    # Products that wait for each other, where the assembler cannot follow which registers are still in use.
    is_serial = "wgmma.mma_async instructions are serialized" in said
    return {"registers": int(registers[1]), "spilled_bytes": int(spilled[1]), "is_serial": is_serial}


setattr(weight_gradient_launch, "_run", run)  # noqa: B010
kinds = {"bfloat16": torch.bfloat16, "float32": torch.float32}
for size, layers in LAYERS.items():
    for height, inputs, outputs in layers:
        for kind, dtype in kinds.items():
            case = f"{size}, {inputs} to {outputs}, {kind}"
            shape = 1024, height, height
            x, slope = (torch.empty(*shape, channels, dtype=dtype, device="meta") for channels in (inputs, outputs))
            weight_gradient_launch.weight_gradient(x, slope, 5)
if "--table" in sys.argv:
    for case, one in compiled.items():
        print(triton.__version__, case, one, file=sys.stderr)
print(json.dumps(compiled))
