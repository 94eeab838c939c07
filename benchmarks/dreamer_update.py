"""How long does one whole update of DreamerV3 take: sampling, world model, imagination, actor, critic, optimiser?

    python benchmarks/dreamer_update.py [--sizes 12m] [--observations vector image] [--precision auto] [--calls 50]

Made-up data of the right shapes, 16 sequences of 64 steps, imagination of 15 steps, no simulator. Eager and, on a CUDA
device, captured in a graph. Prints the best of four loops and writes benchmarks/results/dreamer_update.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import torch

from reverie.commands.composition import composed
from reverie.rehearsal import rehearsal
from reverie.types import Space, Spaces

RESULTS = Path(__file__).parent / "results" / "dreamer_update.json"
SPACES = {
    "vector": Spaces(obs={"vector": Space(shape=(24,), dtype="float32")}, action=Space(shape=(6,), dtype="float32")),
    "image": Spaces(
        obs={"image": Space(shape=(64, 64, 3), dtype="uint8")}, action=Space(shape=(), dtype="int64", classes=6)
    ),
}


def milliseconds(function: Callable[[], object], device: torch.device, calls: int) -> float:
    """Of one call: the best of four loops."""
    best = float("inf")
    for _ in range(4):
        _wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            function()
        _wait(device)
        best = min(best, (time.perf_counter() - start) / calls * 1000)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(size: str, observations: str, precision: str, calls: int) -> dict[str, object]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    overrides = ["experiment=random_cartpole", f"size={size}", "runtime=auto", f"runtime.precision={precision}"]
    groups = [f"{group}=dreamer_v3" for group in ("components", "controller", "workflow")]
    config = composed("gym_CartPole-v1", [*overrides, *groups, "phases=online", "training.total_timesteps=1"])
    start = time.perf_counter()
    made = rehearsal(config, spaces=SPACES[observations], device=device, streams=16, rows=16 * 512)
    made.update()
    _wait(device)
    first = time.perf_counter() - start
    found: dict[str, object] = {
        "size": size,
        "observations": observations,
        "precision": precision,
        "seconds_to_first_update": round(first, 2),
        "eager_ms_per_update": round(milliseconds(made.update, device, max(1, calls // 10)), 2),
    }
    if device.type == "cuda":
        captured = made.captured()
        for _ in range(5):
            captured()
        found["ms_per_update"] = round(milliseconds(captured, device, calls), 2)
        found["peak_gib"] = round(torch.cuda.max_memory_allocated() / 2**30, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=["12m"])
    parser.add_argument("--observations", nargs="+", default=list(SPACES), choices=list(SPACES))
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--calls", type=int, default=50)
    arguments = parser.parse_args()
    found = []
    for size in arguments.sizes:
        for observations in arguments.observations:
            found.append(measured(size, observations, arguments.precision, arguments.calls))
            print(json.dumps(found[-1]), flush=True)
    hardware = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    result = {"hardware": hardware, "torch": torch.__version__, "commit": commit, "results": found}
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
