"""A short real run of an experiment, in a folder that is gone afterwards, and what was measured in it."""

from __future__ import annotations

import copy
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from omegaconf import DictConfig, OmegaConf

from reverie.build import assemble, phases_of
from reverie.configuration import plain, section
from reverie.environments.task_descriptions import descriptions
from reverie.offline_build import TooLargeError, shown_task
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.orchestration.device_faults import is_want_of_memory
from reverie.orchestration.evaluator import EvaluationConfig
from reverie.orchestration.logger import LoggingConfig, check_sinks
from reverie.orchestration.parts import Parts, check_phases
from reverie.orchestration.phases import HookSpec, PhaseSpec
from reverie.orchestration.replay_memory import Free, RowBytes, row_bytes
from reverie.orchestration.run_counts import BufferRoom, Every, RunCounts, run_counts
from reverie.probe_measures import Collecting, Files, Updating, collected, files_written, filled, updated
from reverie.probe_replay import Replay, capacities, need_of, planned_replay, room_of, with_small_replay
from reverie.replay_build import keep_replay_with
from reverie.runtime.device import RuntimeConfig, chosen_device, prepare_torch
from reverie.runtime.durable_files import reason
from reverie.runtime.machine_memory import machine_memory
from reverie.runtime.process_memory import children_bytes, peak_bytes, resident_bytes
from reverie.sections import ExperimentConfig
from reverie.session import RUNS, chosen_logdir
from reverie.types import ReverieError, RunStoppedError

_COLLECTING_SHARE = 0.3
_UPDATING_SHARE = 0.6
"""Of the seconds that a probe may take. The rest is for files and for what takes longer than it should."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """What was free before the probe began, this process not counted. None: the system does not say, or has none."""

    ram_bytes: int | None
    gpu_bytes: int | None
    disk_bytes: int
    runs_folder: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """Seconds, and bytes in the memory of this process, of its workers and of the GPU."""

    start_seconds: float
    """Until everything was there, and what the first calls of all took longer: compiling, recording, warming up."""
    collecting: Collecting | None
    updating: Mapping[tuple[HookSpec, str | None], Updating]
    files: Files
    main_bytes: int
    worker_bytes: int
    gpu_bytes: int
    row_bytes: RowBytes


@dataclass(frozen=True, kw_only=True, slots=True)
class Probed:
    """Everything that a plan is made of."""

    experiment: str
    task: str
    device: str
    num_envs: int
    counts: RunCounts
    replay: Mapping[str, Replay]
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig
    logging: LoggingConfig
    measured: Measured
    machine: Machine
    episode_limit: int | None = None
    """The task's time limit in agent steps; None where its suite does not say, or nothing is evaluated."""


def probed(config: DictConfig, *, seconds: float, say: Callable[[str], None]) -> Probed:
    """Run the beginning of an experiment for about so many seconds, saying what is measured. Nothing of it is left."""
    config = copy.deepcopy(config)  # `_dims` is filled in below
    OmegaConf.set_struct(config, False)
    experiment = section(ExperimentConfig, config.experiment, path="experiment")
    check_sinks(section(LoggingConfig, config.logging, path="logging"))
    section(CheckpointConfig, config.checkpoint, path="checkpoint")
    config.logging.wandb.mode = "disabled"  # a probe is nobody's run
    device = chosen_device(experiment.device)
    prepare_torch(section(RuntimeConfig, config.runtime, path="runtime"), device)
    where = _existing(chosen_logdir(config) or RUNS)
    machine = _machine(device, where)
    start = time.perf_counter()
    small = with_small_replay(config)
    with _naming_what_does_not_fit("the model", device):
        parts = assemble(small, device=device, allow=None)
    with closing(parts), _temporary_folder(where) as folder:
        assembling = time.perf_counter() - start
        check_phases(phases_of(config), parts)
        sizes = capacities(config)
        rooms = {name: room_of(buffer, sizes.get(name)) for name, buffer in parts.buffers.items()}
        counts = _counts(parts, config, rooms)
        checkpoint = section(CheckpointConfig, config.checkpoint, path="checkpoint")
        keep_replay_with(CheckpointManager(folder, config=checkpoint, say=_say_nothing), parts.buffers)
        measured = _measured(parts, small, folder, seconds=seconds, assembling=assembling, say=say)
        gpu = None if machine.gpu_bytes is None else max(0, machine.gpu_bytes - measured.gpu_bytes)
        free = Free(cuda=gpu, host=machine.ram_bytes, disk=machine.disk_bytes)
        needed = [need_of(name, room, counts, measured.row_bytes, config) for name, room in rooms.items()]
        replay = planned_replay(needed, config, free, device)
        return _summed_up(parts, small, counts, replay, measured=measured, machine=machine)


def _counts(parts: Parts, config: DictConfig, rooms: Mapping[str, BufferRoom]) -> RunCounts:
    evaluation = section(EvaluationConfig, config.evaluation, path="evaluation")
    checkpoint = section(CheckpointConfig, config.checkpoint, path="checkpoint")
    return run_counts(
        phases_of(config),
        num_envs=parts.train_env.num_envs,
        buffers=rooms,
        context_rows=parts.workflow.context_rows,
        evaluations=Every(steps=evaluation.every_steps, updates=evaluation.every_updates),
        checkpoints=Every(steps=checkpoint.every_steps, updates=checkpoint.every_updates),
    )


def _summed_up(
    parts: Parts,
    config: DictConfig,
    counts: RunCounts,
    replay: Mapping[str, Replay],
    *,
    measured: Measured,
    machine: Machine,
) -> Probed:
    resolved = plain(config)
    return Probed(
        experiment=resolved["experiment"]["name"],
        task=shown_task(resolved),
        device=str(parts.device),
        num_envs=parts.train_env.num_envs,
        counts=counts,
        replay=replay,
        evaluation=section(EvaluationConfig, config.evaluation, path="evaluation"),
        checkpoint=section(CheckpointConfig, config.checkpoint, path="checkpoint"),
        logging=section(LoggingConfig, config.logging, path="logging"),
        measured=measured,
        machine=machine,
        episode_limit=_episode_limit(resolved["task"], parts) if counts.evaluations else None,
    )


def _episode_limit(task: str | None, parts: Parts) -> int | None:
    try:
        infos = [] if task is None else list(descriptions([task]))
    except ReverieError:
        return None  # a task of the user's own, which no suite knows
    if not infos or infos[0].episode_steps is None:
        return None
    # The suite counts in its usual agent steps, which an experiment may have made longer or shorter.
    return infos[0].episode_steps * infos[0].frames_per_step // parts.train_env.frames_per_step


def _measured(
    parts: Parts, config: DictConfig, folder: Path, *, seconds: float, assembling: float, say: Callable[[str], None]
) -> Measured:
    phases = phases_of(config)
    width = row_bytes(parts.workflow.policy(None), parts.train_env.spaces, parts.rng, parts.device)
    if parts.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(parts.device)
    collecting = None
    if spec := _longest(phases, parts):
        say(f"Measuring steps of {parts.train_env.num_envs} environments in phase '{spec.name}' ...")
        collecting = collected(parts, spec, seconds=seconds * _COLLECTING_SHARE)
    learning = _learning(phases)
    updating: dict[tuple[HookSpec, str | None], Updating] = {}
    for (hook, name), spec in learning.items():
        buffer = None if name is None else parts.buffers[name]
        if hook.batch is not None and buffer is not None and collecting is not None:
            filled(buffer, collecting.row, hook.batch, context_rows=parts.workflow.context_rows)
        budget = seconds * _UPDATING_SHARE / len(learning)
        words = _update_words(spec, hook)
        say(f"Measuring {words} ...")
        with _naming_what_does_not_fit(words, parts.device):
            updating[hook, name] = updated(parts, spec, hook, config=config, folder=folder, seconds=budget)
    say("Measuring a checkpoint and a line of metrics ...")
    worker_bytes = children_bytes()  # while there are any: what follows closes the environments
    files = files_written(parts, config, folder, metrics=[one.metrics for one in updating.values()])
    return Measured(
        start_seconds=assembling + sum(one.start_seconds for one in (collecting, *updating.values()) if one),
        collecting=collecting,
        updating=updating,
        files=files,
        main_bytes=peak_bytes(),
        worker_bytes=worker_bytes,
        gpu_bytes=torch.cuda.max_memory_allocated(parts.device) if parts.device.type == "cuda" else 0,
        row_bytes=width,
    )


def _longest(phases: Sequence[PhaseSpec], parts: Parts) -> PhaseSpec | None:
    """The collecting phase that the most steps are made in: phases may act in different ways."""
    collecting = [phase for phase in phases if phase.has_hook("collect")]
    if parts.train_env.num_envs == 0 or not collecting:
        return None
    return max(collecting, key=lambda phase: phase.duration_steps or 0)


def _learning(phases: Sequence[PhaseSpec]) -> dict[tuple[HookSpec, str | None], PhaseSpec]:
    """Every kind of update with a phase that makes it; repeated phases make the same ones."""
    found: dict[tuple[HookSpec, str | None], PhaseSpec] = {}
    for phase in phases:
        for hook in phase.hooks:
            if hook.kind == "update":
                found.setdefault((hook, phase.buffer), phase)
    return found


def _machine(device: torch.device, where: Path) -> Machine:
    available = machine_memory().available_bytes
    return Machine(
        ram_bytes=None if available is None else available + resident_bytes(),
        gpu_bytes=torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None,
        disk_bytes=shutil.disk_usage(where).free,
        runs_folder=str(where),
    )


def _existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that is there."""
    path = path.absolute()
    return path if path.is_dir() else _existing(path.parent)


@contextmanager
def _temporary_folder(where: Path) -> Iterator[Path]:
    """On the disk that the run would write to, so that its speed is measured."""
    # Named before it is made, and not by tempfile: a Ctrl-C between making and remembering it would leave it behind.
    folder = where / f".reverie-plan-{secrets.token_hex(4)}"
    try:
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise ReverieError(f"cannot write to {where}: {reason(error)}; choose another logdir.") from error
        yield folder
    finally:
        if folder.is_dir():
            shutil.rmtree(folder)


@contextmanager
def _naming_what_does_not_fit(what: str, device: torch.device) -> Iterator[None]:
    """Memory that runs out in the middle of a probe is an answer too: there is no plan, but there is its bottleneck."""
    try:
        yield
    except TooLargeError as error:
        raise RunStoppedError(f"does not fit: {error}") from error
    except (torch.OutOfMemoryError, ReverieError) as error:
        if not is_want_of_memory(error):
            raise
        raise RunStoppedError(
            f"does not fit: {what} needs more memory than {device} has free; choose a smaller size=, "
            "training.batch_size or training.batch_length."
        ) from error


def _say_nothing(_: str) -> None:
    """A probe has nothing to report but its numbers."""


def _update_words(spec: PhaseSpec, hook: HookSpec) -> str:
    batch = "" if hook.batch is None else f" with a batch of {hook.batch.size} x {hook.batch.length}"
    return f"one update ('{hook.name}' of phase '{spec.name}'){batch}"
