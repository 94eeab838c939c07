"""Started by a test: compiles the kernels of DreamerV3's walk for a Hopper GPU, which need not be here, and lists them.

The interpreter takes what the compiler refuses: a name that stands for two shapes, or a global that it does not know.
"""

from __future__ import annotations

import json
from typing import Any

import torch
import triton
from plain_walk import Walk, made_up
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from reverie.components.representation_learners import rssm_fused
from reverie.components.representation_learners.rssm_by_hand import weights_in
from reverie.components.representation_learners.rssm_tape import Arriving

KINDS = {torch.float32: "*fp32", torch.bfloat16: "*bf16", float: "fp32", int: "i32"}
compiled: dict[str, dict[str, int]] = {}


def run(self: Any, kernel: Any, tiles: int, *arguments: Any, **flags: int) -> None:
    """In place of a launch."""
    name = f"{kernel.__name__} {sorted(flags.items())} {dtype} pieces {self.pieces}"
    if name in compiled:
        return
    sizes = {**flags, **self.known(kernel)}
    signature: dict[str, str] = {}
    aligned = {}
    for place, value in enumerate((*arguments, self.batch)):
        signature[kernel.arg_names[place]] = KINDS[value.dtype if isinstance(value, Tensor) else type(value)]
        if isinstance(value, Tensor) or value == self.batch:
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature | dict.fromkeys(sizes, "constexpr"), sizes, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=self.launch)
    text = made.asm["ptx"]
    compiled[name] = {"shared_bytes": made.metadata.shared, "mma": text.count("mma.sync"), "tiles": tiles}


setattr(rssm_fused._Sizes, "run", run)  # noqa: B010
narrow = Walk(length=2, size=16, blocks=8, deter=512, hidden=64, stoch=32, classes=4)
wide = Walk(length=2, size=16, blocks=8, deter=8192, hidden=1024, stoch=32, classes=64)
for walk, dtype in ((narrow, torch.float32), (narrow, torch.bfloat16), (wide, torch.bfloat16)):
    inputs, weights = made_up(walk, torch.float32)
    with torch.no_grad():
        inputs = inputs._replace(action=inputs.action.to(dtype), tokens=inputs.tokens.to(dtype))
        weights = weights_in(dtype, weights)
        tape = rssm_fused.FusedSteps().forward(inputs, weights, walk.latents)
        to_stoch = torch.zeros(2, 16, walk.stoch * walk.classes)
        arriving = Arriving(torch.zeros_like(tape.deter[1:]), to_stoch, torch.zeros_like(tape.logits))
        others = [rssm_fused.FusedSteps(terms=256, has_overlap=True)] if walk is narrow else []
        for steps in (rssm_fused.FusedSteps(), *others):
            steps.forward(inputs, weights, walk.latents)
            steps.forward(inputs._replace(noise=None), weights, walk.latents)
            steps.backward(inputs, weights, walk.latents, tape, arriving)
print(json.dumps(compiled))
