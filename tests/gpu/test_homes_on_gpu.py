"""Replay in host memory and on disk feeds a GPU: the same run eager and captured, stopped and resumed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch
from killer import Killer
from same_run import SMALL_RUN, differences

from reverie.buffers.prefetched import PrefetchedBuffer
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.types import Batch, Row

ON_GPU = (*SMALL_RUN, "runtime=gpu", "runtime.compiles_steps=false")
CPU, GPU = torch.device("cpu"), torch.device("cuda")


def row(number: int, device: torch.device) -> Row:
    value = torch.full((2,), number, device=device)
    no = torch.zeros(2, dtype=torch.bool, device=device)
    return Row(
        obs={"image": (value % 251).to(torch.uint8).view(2, 1, 1, 1).expand(2, 20, 20, 3).contiguous()},
        reward=value.float(),
        is_first=no,
        is_last=no,
        is_terminal=no,
        action=value,
        stored={"deter": value.to(torch.bfloat16).unsqueeze(1).expand(2, 600).contiguous()},
    )


def bits(batch: Batch) -> list[list[float]]:
    values = (batch.obs["image"][..., 0, 0, 0], batch.reward, batch.action, batch.stored["deter"][..., 7])
    return [value.cpu().float().flatten().tolist() for value in values]


def test_batches_from_pinned_memory_are_those_of_the_host() -> None:
    """Two buffers with the same draws: one is asked on the host, one through the thread."""
    made = {}
    for device in (CPU, GPU):
        buffer = WorldModelSequenceBuffer(
            capacity=64, num_streams=2, rng=torch.Generator().manual_seed(0), pins_batches=device == GPU
        )
        made[device] = PrefetchedBuffer(buffer, device=device)
    for number in range(100):
        for device, buffer in made.items():
            buffer.append(row(number, device))
        if number < 10:
            continue
        batches = {device: buffer.sample(4, 5, sampler="uniform") for device, buffer in made.items()}
        assert batches[GPU].reward.is_cuda
        assert bits(batches[GPU]) == bits(batches[CPU])
        for device, buffer in made.items():
            latents = torch.full((4, 3, 600), -number, dtype=torch.float32, device=device)
            buffer.write_back(batches[device].index, {"deter": latents})
            latents.zero_()  # a recording overwrites its results too


@pytest.mark.parametrize("home", ["host", "disk"])
def test_eager_and_captured_runs_are_the_same(home: str, killer: Killer, tmp_path: Path) -> None:
    runs = {value: tmp_path / value for value in ("true", "false")}
    for value, run in runs.items():
        settings = [f"buffer.device={home}", f"runtime.captures_updates={value}", f"logdir={run}"]
        ended = killer.run("train", *ON_GPU, *settings)
        assert ended.code == 0, ended.output
    assert differences(*runs.values()) == []


def test_a_stopped_and_resumed_run_is_the_same(killer: Killer, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    settings = [*ON_GPU, "buffer.device=host"]
    assert killer.run("train", *settings, f"logdir={whole}").code == 0
    ended = killer.signalled(
        *("train", *settings, f"logdir={stopped}"),
        until=lambda: "Evaluation after 144" in killer.output(),
        delay_seconds=0.1,
        number=signal.SIGTERM,
    )
    assert ended.code == 143, ended.output
    assert killer.run("resume", str(stopped)).code == 0
    assert differences(stopped, whole) == []
