"""A small run that has everything a resume can get wrong, and the question whether two runs are the same run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.configuration import read_config
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.orchestration.checkpoint_reader import Loaded
from reverie.types import State

BATCH = "{size: 3, length: 6, sampler: {fresh_first: 0.6, prioritized: 0.4}}"
PHASES = f"""[
    {{name: prefill, type: online, buffer: replay, duration_steps: 64, workflow_hooks: [collect]}},
    {{name: learn, type: online, buffer: replay, duration_steps: 208, train_ratio: 2.7,
      workflow_hooks: [collect, {{update: {{batch: {BATCH}}}}}]}},
    {{name: study, type: offline, buffer: replay, duration_updates: 5,
      workflow_hooks: [{{update: {{batch: {{size: 3, length: 6, sampler: prioritized, crosses_episodes: false}}}}}}]}},
    {{name: final_evaluation, type: eval_only, duration_cycles: 1, workflow_hooks: [evaluate]}}]"""
SMALL_RUN = (
    "experiment=dreamer_cartpole",
    "size=debug",
    "environment.num_envs=4",
    "workflow.horizon=2",
    "training.total_timesteps=272",
    f"training.phases={' '.join(PHASES.split())}",
    # 32 rows of each environment: the ring closes a chunk every 128 rows and wraps at the same time.
    "buffer.replay.capacity=128",
    "buffer.evaluation.capacity=96",
    "evaluation={every_steps: 72, episodes: 3, envs: 2}",
    "evaluation.open_loop.pictures_every=null",  # they have tests of their own, and take longer than all the rest
    # 32 divides the end of the first phase, 72 and 36 do not.
    "checkpoint.every_steps=32",
    "logging.every_steps=36",
    "logging.has_tensorboard=false",
)
"""Overrides of a run of about two seconds: two online phases, an offline one and an evaluation at the end."""


def differences(one: Path, other: Path) -> list[str]:
    """Where two runs are not the same, in words; empty when their last checkpoints, replay and metrics agree."""
    found = [f"metrics: {place}" for place in unlike(metric_lines(one), metric_lines(other), "line")]
    (first, first_rows), (second, second_rows) = _last(one), _last(other)
    if first.name != second.name:
        found.append(f"last checkpoint: {first.name} and {second.name}")
    found += [f"state: {place}" for place in unlike(lasting(first.state), lasting(second.state), "")]
    return found + [f"replay: {place}" for place in unlike(first_rows, second_rows, "")]


def replay_files(run: Path) -> dict[str, bytes]:
    """Every file under ``replay`` by its relative path."""
    files = [path for path in (run / "replay").rglob("*") if path.is_file()]
    return {str(path.relative_to(run)): path.read_bytes() for path in files}


def metric_lines(run: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` without what a clock wrote."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if name != "wall_seconds" and not name.startswith("time/")}
        for line in lines
    ]


def status(run: Path) -> str:
    return json.loads((run / "run.json").read_text())["status"]


def checkpoint_names(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir() if path.is_dir())


def lasting(state: State) -> State:
    """Without the clock, and without the length of a file in which the clock has written numbers."""
    own = {key: value for key, value in state["orchestrator"].items() if key != "wall_seconds"}
    logger = {key: value for key, value in state["logger"].items() if key != "offset"}
    return {**state, "orchestrator": own, "logger": logger}


def last_buffers(run: Path) -> tuple[Loaded, dict[str, WorldModelSequenceBuffer]]:
    """The newest checkpoint, and its buffers, loaded."""
    said: list[str] = []
    manager = CheckpointManager(run, config=CheckpointConfig(), say=said.append)
    loaded = manager.load()
    assert loaded is not None
    assert said == []
    config = read_config(run)
    streams = {"replay": config["environment"]["num_envs"], "evaluation": config["evaluation"]["envs"]}
    buffers = {
        name: WorldModelSequenceBuffer(
            capacity=config["buffer"][name]["capacity"], num_streams=streams[name], rng=torch.Generator()
        )
        for name in streams
    }
    manager.restore_buffers(loaded, buffers)
    for name, buffer in buffers.items():
        buffer.set_state(loaded.state["buffers"][name])
    return loaded, buffers


def _last(run: Path) -> tuple[Loaded, State]:
    """The newest checkpoint, and the rows that its buffers hold."""
    loaded, buffers = last_buffers(run)
    rows: State = {}
    for name, buffer in buffers.items():
        rows[name] = {str(index): buffer.chunk(index) for index in buffer.closed_chunks()}
        rows[name]["open"] = buffer.get_state()
    return loaded, rows


def unlike(one: Any, other: Any, path: str) -> list[str]:
    """The places where two trees differ, every tensor and array compared bit by bit."""
    if isinstance(one, dict) and isinstance(other, dict):
        missing = [f"{path}/{key} is on one side only" for key in one.keys() ^ other.keys()]
        shared = [key for key in one if key in other]
        return missing + [place for key in shared for place in unlike(one[key], other[key], f"{path}/{key}")]
    if isinstance(one, list) and isinstance(other, list):
        length = [] if len(one) == len(other) else [f"{path} has {len(one)} and {len(other)} items"]
        pairs = enumerate(zip(one, other, strict=False))
        return length + [place for index, pair in pairs for place in unlike(*pair, f"{path} {index}")]
    return [] if _bits(one) == _bits(other) else [f"{path}: {one!r:.60} and {other!r:.60}"]


def _bits(value: Any) -> object:
    """NaN equals NaN here, and 0.0 does not equal -0.0."""
    if isinstance(value, torch.Tensor):
        return (
            str(value.dtype),
            tuple(value.shape),
            value.contiguous().cpu().flatten().view(torch.uint8).numpy().tobytes(),
        )
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    return type(value), repr(value)
