"""What does replay cost: drawing a batch against copying its bytes, adding rows, and torchrl on the same data?

    python benchmarks/replay.py [--rows 200000] [--calls 30]

Batches of 16 windows of 65 rows with 64x64x3 pictures and latents of DreamerV3 at 12m, from a buffer that is larger
than any cache and has wrapped. The copy is of as many bytes, between places as far apart; on a CUDA device the draw is
also captured in a graph. `pip install torchrl` for the comparison with its ReplayBuffer and SliceSampler, which gets
pictures, rewards, ends and actions only. Everything takes turns; the ratios are medians over the rounds. Writes
benchmarks/results/replay.json.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
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
from torch import Tensor

from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.types import Batch, Row

RESULTS = Path(__file__).parent / "results" / "replay.json"
STREAMS, SIZE, LENGTH = 16, 16, 65
EPISODE = 500
ROUNDS = 7
COPIES = 40
"""Places that are copied from in turn: together larger than any cache."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows over all streams; 16 KB each")
    parser.add_argument("--calls", type=int, default=30, help="calls in a turn")
    given = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    buffer, append_microseconds = filled(given.rows, device)
    ways = measured_ways(buffer, device)
    if importlib.util.find_spec("torchrl") is not None:
        ways["torchrl"] = torchrl_way(given.rows, device)
    rounds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            rounds[name].append(milliseconds(way, device, given.calls))
    result = {
        "hardware": hardware(device),
        "versions": versions(),
        "commit": commit(),
        "rows": given.rows,
        "batch_megabytes": round(byte_count(buffer.sample(SIZE, LENGTH, sampler="uniform")) / 1e6, 2),
        "milliseconds": {name: round(statistics.median(values), 4) for name, values in rounds.items()},
        "append_microseconds_of_host": round(append_microseconds, 1),
        "sample_over_copy": ratio(rounds["sample"], rounds["copy"]),
    }
    if "torchrl" in rounds:
        result["torchrl_over_sample"] = ratio(rounds["torchrl"], rounds["sample"])
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def filled(rows: int, device: torch.device) -> tuple[WorldModelSequenceBuffer, float]:
    """A buffer that has wrapped, and the host's microseconds for one append of 16 rows."""
    rng = torch.Generator(device).manual_seed(0)
    buffer = WorldModelSequenceBuffer(capacity=rows, num_streams=STREAMS, rng=rng)
    no = torch.zeros(STREAMS, dtype=torch.bool, device=device)
    ready = [made_row(number, no) for number in (0, 1)]
    spent = []
    for number in range(rows // STREAMS + 100):
        start = time.perf_counter()
        buffer.append(ready[0 if number % EPISODE == 0 else 1])
        spent.append(time.perf_counter() - start)
    wait(device)
    return buffer, statistics.median(spent) * 1e6


def made_row(number: int, no: Tensor) -> Row:
    device = no.device
    return Row(
        obs={"image": torch.randint(0, 256, (STREAMS, 64, 64, 3), dtype=torch.uint8, device=device)},
        reward=torch.zeros(STREAMS, device=device),
        is_first=~no if number == 0 else no,
        is_last=no,
        is_terminal=no,
        action=torch.zeros(STREAMS, dtype=torch.int64, device=device),
        stored={
            "deter": torch.zeros(STREAMS, 2048, dtype=torch.bfloat16, device=device),
            "stoch": torch.zeros(STREAMS, 32, dtype=torch.uint8, device=device),
        },
    )


def measured_ways(buffer: WorldModelSequenceBuffer, device: torch.device) -> dict[str, Callable[[], object]]:
    def sample() -> Batch:
        return buffer.sample(SIZE, LENGTH, sampler="fresh_first")

    count = byte_count(sample())
    places = torch.randint(0, 256, (COPIES, count), dtype=torch.uint8, device=device)
    turn = [0]

    def copy() -> Tensor:
        turn[0] = (turn[0] + 1) % COPIES
        return places[turn[0]].clone()

    ways: dict[str, Callable[[], object]] = {"sample": sample, "copy": copy}
    for name in ("recent", "prioritized"):
        ways[name] = lambda name=name: buffer.sample(SIZE, LENGTH, sampler=name)
    ways["uniform inside episodes"] = lambda: buffer.sample(SIZE, LENGTH, sampler="uniform", crosses_episodes=False)
    if device.type == "cuda":
        ways["captured sample"] = captured(sample, buffer)
    return ways


def captured(sample: Callable[[], object], buffer: WorldModelSequenceBuffer) -> Callable[[], object]:
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(buffer._rng)
    with torch.cuda.graph(graph):
        sample()
    return graph.replay


def torchrl_way(rows: int, device: torch.device) -> Callable[[], object]:
    torchrl, tensordict = importlib.import_module("torchrl.data"), importlib.import_module("tensordict")
    buffer = torchrl.ReplayBuffer(
        storage=torchrl.LazyTensorStorage(rows, device=device),
        sampler=torchrl.SliceSampler(slice_len=LENGTH, end_key=("next", "done"), strict_length=True),
        batch_size=SIZE * LENGTH,
    )
    done = torch.zeros(EPISODE, 1, dtype=torch.bool, device=device)
    done[-1] = True
    episode = tensordict.TensorDict(
        {
            "image": torch.randint(0, 256, (EPISODE, 64, 64, 3), dtype=torch.uint8, device=device),
            "action": torch.zeros(EPISODE, dtype=torch.int64, device=device),
            "next": {"reward": torch.zeros(EPISODE, 1, device=device), "done": done},
        },
        batch_size=[EPISODE],
    )
    for _ in range(rows // EPISODE):
        buffer.extend(episode)
    return buffer.sample


def milliseconds(way: Callable[[], object], device: torch.device, calls: int) -> float:
    way()
    wait(device)
    start = time.perf_counter()
    for _ in range(calls):
        way()
    wait(device)
    return (time.perf_counter() - start) / calls * 1e3


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def byte_count(batch: Batch) -> int:
    flags = (batch.reward, batch.action, batch.is_first, batch.is_last, batch.is_terminal)
    return sum(one.nbytes for one in (*batch.obs.values(), *batch.stored.values(), *flags))


def ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(one / other for one, other in zip(ours, theirs, strict=True)), 3)


def hardware(device: torch.device) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {"machine": platform.machine(), "cpu_count": os.cpu_count(), "gpu": gpu}


def versions() -> dict[str, str]:
    names = ["torch", *(name for name in ("torchrl",) if importlib.util.find_spec(name) is not None)]
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    main()
