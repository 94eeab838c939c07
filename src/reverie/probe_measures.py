"""The parts of a probe: some steps, some updates, one checkpoint and one metrics line, each with its time."""

from __future__ import annotations

import io
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from omegaconf import DictConfig
from rich.console import Console

from reverie.buffers.base import Buffer
from reverie.build import assemble_orchestrator
from reverie.configuration import plain, section
from reverie.orchestration.black_box import BlackBox
from reverie.orchestration.display import PlainDisplay
from reverie.orchestration.logger import Counters, Logger, LoggingConfig, make_sinks
from reverie.orchestration.parts import Parts
from reverie.orchestration.phase_updates import PhaseUpdates
from reverie.orchestration.phases import BatchSpec, HookSpec, PhaseSpec
from reverie.orchestration.stopwatch import Stopwatch
from reverie.orchestration.update_guard import UpdateGuard
from reverie.runtime.capture import WARM_UP_CALLS, is_capturable
from reverie.runtime.device import RuntimeConfig
from reverie.types import Metrics, Phase, Row
from reverie.workflows.base import CollectResult

_FIRST_STEPS = WARM_UP_CALLS + 1
"""Not measured: simulators begin their first episodes, libraries make their workspaces."""
_LEAST_STEPS = 2
_NEVER = 10**9
"""Updates in a row that may be skipped: a probe learns nothing that could go wrong."""
_NO_COUNTERS = Counters(agent_steps=0, env_frames=0, updates=0, wall_seconds=0.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Collecting:
    """Seconds of one step of all environments, by what they went to."""

    env_seconds: float
    policy_seconds: float
    append_seconds: float
    start_seconds: float
    """Of the first steps, which count as the beginning of the run."""
    episode_length: float
    """Agent steps: the mean of the episodes that ended, or how far the open ones had come."""
    has_ended_episodes: bool
    row: Row
    """The last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Updating:
    """Seconds of one update."""

    seconds: float
    """Without the draw, where that is told apart."""
    draw_seconds: float | None
    """Drawing the batch and writing back; None where it is part of one CUDA graph or runs beside the host."""
    start_seconds: float
    """Of the first calls: compiling and recording."""
    metrics: Metrics
    is_first_call: bool = False
    """There was time for one only. It has been seen to take twice as long as those that follow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Files:
    checkpoint_seconds: float
    checkpoint_bytes: int
    """Without replay, but with what the policy has stored beside the few rows of the probe."""
    line_seconds: float
    """Of one metrics line, in all places that lines go to."""


def collected(parts: Parts, spec: PhaseSpec, *, seconds: float) -> Collecting:
    """Act in the training environments as the phase does, for about so many seconds."""
    env, phase = parts.train_env, _phase_of(spec, parts.device)
    buffer = None if spec.buffer is None else parts.buffers[spec.buffer]
    start = time.perf_counter()
    for step in range(_FIRST_STEPS):
        _collect(parts, phase, buffer, step)
    begin, env_before, appending, count = time.perf_counter(), env.seconds, 0.0, 0
    lengths: list[int] = []
    while True:
        result, spent = _collect(parts, phase, buffer, _FIRST_STEPS + count)
        appending += spent
        count += 1
        lengths += [episode.length for episode in result.episodes]
        elapsed = time.perf_counter() - begin
        if count >= _LEAST_STEPS and elapsed >= seconds:
            break
    in_simulators = env.seconds - env_before
    return Collecting(
        env_seconds=in_simulators / count,
        policy_seconds=max(0.0, elapsed - in_simulators - appending) / count,
        append_seconds=appending / count,
        start_seconds=begin - start,
        episode_length=sum(lengths) / len(lengths) if lengths else float(_FIRST_STEPS + count),
        has_ended_episodes=bool(lengths),
        row=result.trajectory,
    )


def filled(buffer: Buffer, row: Row, batch: BatchSpec, *, context_rows: int) -> None:
    """Append copies of ``row`` until one batch can be drawn: measuring an update needs rows, not experience."""
    no = torch.zeros_like(row.is_first)
    # One unbroken episode, so that windows inside an episode can be drawn too.
    copied = replace(row, is_first=no, is_last=no, is_terminal=no)
    for _ in range(buffer.stream_length):
        if buffer.can_sample(batch.size, batch.length + context_rows, crosses_episodes=batch.crosses_episodes):
            return
        buffer.append(copied)


def updated(
    parts: Parts, spec: PhaseSpec, hook: HookSpec, *, config: DictConfig, folder: Path, seconds: float
) -> Updating:
    """Make real updates for about so many seconds; one that takes longer alone is measured all the same."""
    is_cuda = parts.device.type == "cuda"
    captures = is_cuda and section(RuntimeConfig, config.runtime, path="runtime").captures_updates
    stopwatch = Stopwatch()
    updates = PhaseUpdates(parts, _guard(parts, config, folder), stopwatch, captures=captures)
    updates.enter(spec, _phase_of(spec, parts.device), None if spec.buffer is None else parts.buffers[spec.buffer])
    is_recorded = captures and is_capturable(getattr(parts.workflow, hook.name))
    first_calls = WARM_UP_CALLS + 1 if is_recorded else 1
    totals: list[float] = []
    draws: list[float] = []
    metrics: Metrics = {}
    while len(totals) <= first_calls or sum(totals[first_calls:]) < seconds:
        begin, drawn = time.perf_counter(), stopwatch.seconds("replay")
        metrics = updates.perform(hook, _NO_COUNTERS)
        _wait(parts.device)
        totals.append(time.perf_counter() - begin)
        draws.append(stopwatch.seconds("replay") - drawn)
        if not is_recorded and totals[0] > 2 * seconds:
            break  # the person at the keyboard waits
    later = slice(first_calls if len(totals) > first_calls else 0, None)
    # What a GPU draws is part of the recording, or goes on when the host believes it done.
    draw = None if is_cuda or hook.batch is None else _mean(draws[later])
    return Updating(
        seconds=_mean(totals[later]) - (draw or 0.0),
        draw_seconds=draw,
        start_seconds=sum(totals[: later.start]),
        metrics=metrics,
        is_first_call=later.start == 0,
    )


def files_written(parts: Parts, config: DictConfig, folder: Path, *, metrics: Sequence[Metrics]) -> Files:
    """Save a checkpoint of everything, and write a metrics line."""
    orchestrator = assemble_orchestrator(config, parts, folder=folder, display=_silent())
    orchestrator.begin()
    start = time.perf_counter()
    orchestrator.save()
    checkpoint_seconds = time.perf_counter() - start
    orchestrator.close()
    saved = [path for path in (folder / "checkpoints").rglob("*") if path.is_file()]
    return Files(
        checkpoint_seconds=checkpoint_seconds,
        checkpoint_bytes=sum(path.stat().st_size for path in saved),
        line_seconds=_line_seconds(config, folder / "line", metrics),
    )


def _line_seconds(config: DictConfig, folder: Path, metrics: Sequence[Metrics]) -> float:
    folder.mkdir()
    logging = section(LoggingConfig, config.logging, path="logging")
    logger = Logger(folder, config=logging, sinks=make_sinks(folder, config=logging, run_config={}))
    logger.reset()
    spent = 0.0
    for _ in range(2):  # the first one opens the files
        for index, one in enumerate(metrics):
            logger.add(one, prefix=f"train/{index}")
        start = time.perf_counter()
        logger.write(_NO_COUNTERS)
        spent = time.perf_counter() - start
    logger.close()
    return spent


def _guard(parts: Parts, config: DictConfig, folder: Path) -> UpdateGuard:
    return UpdateGuard(
        parts.workflow,
        parts.rng,
        device=parts.device,
        limit=_NEVER,
        black_box=BlackBox(folder, config=plain(config)),
        say=_silent().say,
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _collect(parts: Parts, phase: Phase, buffer: Buffer | None, step: int) -> tuple[CollectResult, float]:
    """One step of all environments, and the seconds in which its row was appended."""
    result = parts.workflow.collect_step(step * parts.train_env.num_envs, phase=phase)
    start = time.perf_counter()
    if buffer is not None:
        buffer.append(result.trajectory)
    return result, time.perf_counter() - start


def _phase_of(spec: PhaseSpec, device: torch.device) -> Phase:
    progress = torch.zeros((), device=device)
    return Phase(name=spec.name, type=spec.type, progress=progress, controller=spec.controller)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _silent() -> PlainDisplay:
    return PlainDisplay(Console(file=io.StringIO()))
