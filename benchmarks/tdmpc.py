"""What does TD-MPC2 cost: a plan for one environment, a plan for sixteen at once, and an update?

    python benchmarks/tdmpc.py [--calls 20] [--sizes tiny tdmpc2_5m ...]

`debug` and `tiny` plan as `experiment=tdmpc_pendulum` does (32 samples, 4 iterations), the other sizes as published
(512 samples, 6 iterations); on a processor the time of one thread counts. One and sixteen take turns; the ratio is the
median over the rounds. On a CUDA device an action is asked for as in a run, from an observation on the host to an
action there, in a recorded step. There the whole update is measured too, in a CUDA graph, with bfloat16 and compiled
steps, on batches of 256 sequences. Rows are made up: 24 numbers seen and 6 done, as a walker has. Writes
benchmarks/results/tdmpc.json, or tdmpc_NAME.json for a GPU of that name.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from reverie.benchmark import SPACES, Conditions, update_speed
from reverie.commands.composition import composed
from reverie.rehearsal import made_up, rehearsal
from reverie.runtime.acting import Acting
from reverie.runtime.capture import WARM_UP_CALLS
from reverie.types import Observation

RESULTS = Path(__file__).parent / "results"
MANY, ROUNDS = 16, 7
SMALL = ("debug", "tiny")
WALKER = SPACES["vector"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20, help="plans in a turn")
    parser.add_argument("--sizes", nargs="+", default=["debug", "tiny"])
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    result: dict[str, Any] = {"hardware": hardware(device), "versions": versions(), "commit": commit()}
    result["plans"] = {size: plans(size, device, given.calls) for size in given.sizes}
    if device.type == "cuda":
        result["milliseconds_of_an_update"] = {size: update(size) for size in given.sizes}
    print(json.dumps(result, indent=1))
    name = "tdmpc" if device.type == "cpu" else f"tdmpc_{torch.cuda.get_device_name(device).split()[-1].lower()}"
    (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def plans(size: str, device: torch.device, calls: int) -> dict[str, Any]:
    """Milliseconds of a plan for one and for sixteen environments, encoder and noise included."""
    experiment = "tdmpc_pendulum" if size in SMALL else "tdmpc_dmc"
    runtime = "auto" if device.type == "cuda" else "cpu"
    config = composed("gym_Pendulum-v1", [f"experiment={experiment}", f"size={size}", f"runtime={runtime}"])
    made = rehearsal(config, spaces=WALKER, device=device, streams=1, rows=1)
    policy, rng = made.workflow.policy(None), torch.Generator().manual_seed(0)
    acting = Acting(made.rng, device, captures=device.type == "cuda")

    def planning(count: int) -> Callable[[], None]:
        no = torch.zeros(count, dtype=torch.bool)
        obs = {key: made_up(space, count, rng) for key, space in WALKER.obs.items()}
        seen = Observation(obs=obs, reward=no.float(), is_first=no, is_last=no, is_terminal=no)
        carry = policy.initial(count)

        def plan() -> None:
            nonlocal carry
            carry = acting.step(policy, carry, seen, mode="train").carry

        return plan

    ways, is_cuda = {count: planning(count) for count in (1, MANY)}, device.type == "cuda"
    for way in ways.values():
        for _ in range(WARM_UP_CALLS + 1 if is_cuda else 0):  # the last of these is recorded
            way()
    rounds: dict[int, list[float]] = {count: [] for count in ways}
    for _ in range(ROUNDS):
        for count, way in ways.items():
            rounds[count].append(milliseconds(way, device, calls if size in SMALL or is_cuda else max(1, calls // 20)))
    ratios = [many / one for one, many in zip(rounds[1], rounds[MANY], strict=True)]
    planner = config.controller.planner
    return {
        **{key: planner[key] for key in ("samples", "iterations", "horizon")},
        "one_milliseconds": round(statistics.median(rounds[1]), 3),
        "sixteen_milliseconds": round(statistics.median(rounds[MANY]), 3),
        "sixteen_over_one": round(statistics.median(ratios), 2),
    }


def milliseconds(call: Callable[[], None], device: torch.device, calls: int) -> float:
    call()
    wait(device)
    # On a processor its own time on one thread: others on the machine do not count.
    clock = time.process_time if device.type == "cpu" else time.perf_counter
    start = clock()
    for _ in range(calls):
        call()
    wait(device)
    return (clock() - start) / calls * 1000


def update(size: str) -> dict[str, Any]:
    config = composed("gym_Pendulum-v1", ["experiment=tdmpc_dmc", f"size={size}"])
    speed = update_speed(config, Conditions(size=size, observations="vector", calls=100))
    return {
        "captured": speed.is_captured,
        "compiled": speed.is_compiled,
        "precision": speed.precision,
        "update": round(speed.ms_per_update, 3),
        "seconds_to_captured": speed.seconds_to_captured,
    }


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def hardware(device: torch.device) -> str:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    return f"{name}, {os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the end"


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in ("torch", "numpy")}}


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, cwd=RESULTS)
    return done.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
