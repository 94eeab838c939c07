"""How long is DreamerV3's walk along a batch, forwards and backwards, in each way of making it?

    python benchmarks/walk.py [--sizes 1m 12m 50m 200m] [--ways eager compiled by_hand fused] [--calls 20]

Sixteen sequences of 64 steps in bfloat16, the RSSM alone, captured in a CUDA graph. `eager` and `compiled` leave
gradients to autograd; `by_hand` has its own, and compiled steps; `fused` has its own kernels too. The gradients of each
are first compared with those of `eager`, all with the likeliest classes: rounding still moves a few, so that the
cosine is near 1 and not 1. Writes benchmarks/results/walk.json. `--tiles` cuts the fused kernels otherwise.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor

from reverie.components.representation_learners.latents import CategoricalLatents, Latent
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.representation_learners.rssm_by_hand import PlainSteps
from reverie.components.representation_learners.rssm_tape import Steps
from reverie.runtime.compilation import use_compiled_steps

RESULTS = Path(__file__).parent / "results" / "walk.json"
SIZES = {"1m": (512, 64, 4), "12m": (2048, 256, 16), "50m": (4096, 512, 32), "200m": (8192, 1024, 64)}
WAYS = ("eager", "compiled", "by_hand", "fused")
BATCH, LENGTH, TOKENS, ACTIONS = 16, 64, 1024, 6
CUTS: list[dict[str, Any]] = [
    {"columns": 32},
    {"columns": 64},
    {"columns": 32, "depth": 256, "stages": 3},
    {"depth": 64},
    {"stages": 3},
    {"warps": 8},
    {"terms": 1024},
    {"terms": 8192},
    {"has_overlap": True},
    {"has_overlap": False},
]
"""What each changes of ``FusedSteps``: about ten seconds of compilation."""
Update = Callable[[Generator | None], list[Tensor]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--calls", type=int, default=20, help="replays in a loop; the median of seven loops counts")
    parser.add_argument("--tiles", action="store_true", help="the fused kernels also with each of CUTS")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/walk.py measures a CUDA device, and torch sees none here.", file=sys.stderr)
        return 2
    found = [row for size in given.sizes for row in measured(size, given.ways, given.calls, has_tiles=given.tiles)]
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    about = {"hardware": torch.cuda.get_device_name(), "torch": torch.__version__, "commit": commit}
    RESULTS.write_text(json.dumps({**about, "results": found}, indent=1) + "\n")
    print(f"{'size':>5} {'way':<36} {'ms':>8} {'first s':>8} {'cosine':>8}")
    for row in found:
        print(f"{row['size']:>5} {row['way']:<36} {row['ms']:8.3f} {row['first_seconds']:8.1f} {row['cosine']:8.5f}")
    return 0


def measured(size: str, ways: list[str], calls: int, *, has_tiles: bool) -> list[dict[str, Any]]:
    rssm, arguments = made(size)
    use_compiled_steps(is_on=False)
    wanted = torch.cat([one.flatten().float() for one in updated(rssm, arguments, None, None)])
    found = []
    for way, update in updates(rssm, arguments, ways, has_tiles=has_tiles).items():
        use_compiled_steps(is_on=way != "eager")
        start = time.perf_counter()
        ours = torch.cat([one.flatten().float() for one in update(None)])
        torch.cuda.synchronize()
        first = time.perf_counter() - start
        cosine = torch.cosine_similarity(ours.double(), wanted.double(), dim=0).item()
        found.append(
            {"size": size, "way": way, "ms": milliseconds(update, calls), "first_seconds": first, "cosine": cosine}
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def made(size: str) -> tuple[Rssm, tuple[Latent, Tensor, Tensor, Tensor]]:
    torch.manual_seed(0)
    deter, hidden, classes = SIZES[size]
    latents = CategoricalLatents(stoch=32, classes=classes)
    rssm = Rssm(token_dim=TOKENS, action_dim=ACTIONS, deter=deter, hidden=hidden, latents=latents).cuda()
    carry = rssm.initial(BATCH, torch.device("cuda"))
    tokens = torch.randn(BATCH, LENGTH, TOKENS, device="cuda", requires_grad=True)
    is_first = torch.rand(BATCH, LENGTH, device="cuda") < 0.01
    return rssm, (carry, tokens, torch.randn(BATCH, LENGTH, ACTIONS, device="cuda"), is_first)


def updates(
    rssm: Rssm, arguments: tuple[Latent, Tensor, Tensor, Tensor], ways: list[str], *, has_tiles: bool
) -> dict[str, Update]:
    steps: dict[str, Steps | None] = {"eager": None, "compiled": None, "by_hand": PlainSteps()}
    if "fused" in ways:
        from reverie.components.representation_learners.rssm_fused import FusedSteps

        steps["fused"] = FusedSteps()
        for cut in CUTS if has_tiles else ():
            name = "fused " + " ".join(f"{key}={value}" for key, value in cut.items())
            steps[name] = FusedSteps(**cut)
    return {
        name: functools.partial(updated, rssm, arguments, one) for name, one in steps.items() if name.split()[0] in ways
    }


def updated(
    rssm: Rssm,
    arguments: tuple[Latent, Tensor, Tensor, Tensor],
    steps: Steps | None,
    rng: Generator | None,
) -> list[Tensor]:
    """Gradients of tokens and weights."""
    parameters = [value for name, value in rssm.named_parameters() if not name.startswith("prior")]
    with torch.autocast("cuda", dtype=torch.bfloat16):
        way = rssm.observe if steps is None else functools.partial(rssm.walk, steps=steps)
        latent, posterior = way(*arguments, rng)
    total = latent.deter.mean() + latent.stoch.square().mean() + posterior.float().square().mean()
    return list(torch.autograd.grad(total, [arguments[1], *parameters]))


def milliseconds(update: Update, calls: int) -> float:
    """Of one replay of the captured update: the median of seven loops."""
    rng = torch.Generator("cuda").manual_seed(0)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            update(rng)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(rng)
    with torch.cuda.graph(graph):
        kept = update(rng)
    times = []
    for _ in range(7):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        for _ in range(calls):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / calls)
    del kept
    return statistics.median(times)


if __name__ == "__main__":
    raise SystemExit(main())
