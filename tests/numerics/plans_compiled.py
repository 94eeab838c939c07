"""Started by a test: compiles the kernels of plans for a Hopper GPU, which need not be here, and lists them.

The interpreter takes what the compiler refuses: a name that stands for two shapes, or a global that it does not know.
"""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import patch

import torch
import triton
from small_tdmpc import small_tdmpc
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from reverie.components.controllers import fused_plans
from reverie.components.controllers.action_search import GaussianSearch
from reverie.components.networks.copied_parameters import CopiedParameters

KINDS = {
    **{torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64"},
    **{float: "fp32", int: "i32"},
}
OPTIONS = {"num_warps", "num_stages", "launch_pdl"}
compiled: dict[str, dict[str, int]] = {}


def run(self: Any, kernel: Any, grid: tuple[int, ...], *arguments: Any, **names: Any) -> None:
    """In place of a launch."""
    options = {key: value for key, value in names.items() if key in OPTIONS} | {"launch_pdl": True}
    sizes = {key: getattr(value, "value", value) for key, value in names.items() if key not in OPTIONS}
    sizes["OVERLAP"] = True
    name = f"{kernel.__name__} {self._plans.dtype} {sorted(sizes.items())}"
    if name in compiled:
        return
    signature, aligned = {}, {}
    for place, value in enumerate(arguments):
        signature[kernel.arg_names[place]] = KINDS[value.dtype if isinstance(value, Tensor) else type(value)]
        if isinstance(value, Tensor) or (isinstance(value, int) and value % 16 == 0):
            aligned[(place,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature | dict.fromkeys(sizes, "constexpr"), sizes, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    text = made.asm["ptx"]
    compiled[name] = {"shared_bytes": made.metadata.shared, "mma": text.count("mma.sync") + text.count("wgmma.mma")}


setattr(fused_plans._Planning, "_run", run)  # noqa: B010
torch.set_num_threads(1)
for size, samples, dtypes in (
    ("tdmpc2_5m", 512, (torch.bfloat16, torch.float32)),
    ("tdmpc2_19m", 512, (torch.bfloat16,)),
):
    widths = ("controller.planner.iterations=1", f"controller.planner.samples={samples}")
    workflow = small_tdmpc(f"size={size}", *widths, "controller.planner.proposals=24", "controller.planner.elites=64")
    planner, model, rng = workflow._planner, workflow.model, torch.Generator().manual_seed(0)
    assert isinstance(planner.search, GaussianSearch)
    noise = planner.noise(1, model, rng, is_greedy=False)
    noise.proposed.zero_()
    for dtype in dtypes:
        plans = fused_plans.FusedPlans(planner, planner.search, model, dtype, has_overlap=True)
        with patch.object(CopiedParameters, "refresh"):
            plans(torch.zeros(1, workflow._encoder.latent_dim), torch.zeros(3, 1, 2), noise)
print(json.dumps(compiled))
