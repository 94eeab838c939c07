"""What a run consists of below the loop, and whether phases and checkpoints fit it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass

import torch

from reverie.buffers.base import Buffer
from reverie.buffers.offline import OfflineBuffer
from reverie.buffers.selection import shares
from reverie.environments.vector import VectorEnvironment
from reverie.orchestration.checkpoint import Loaded
from reverie.orchestration.evaluator import EVALUATION_BUFFER, Evaluator
from reverie.orchestration.phases import BatchSpec, HookSpec, PhaseSpec
from reverie.orchestration.state_tree import compare_shapes
from reverie.runtime.rng import RandomStreams
from reverie.types import ReverieError
from reverie.workflows.base import WorldModelWorkflow

SHAPED = ("components", "controllers", "optimizers")
"""Parts of the state whose arrays have the sizes of the model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parts:
    """What a run consists of, apart from the loop itself."""

    workflow: WorldModelWorkflow
    buffers: Mapping[str, Buffer]
    train_env: VectorEnvironment
    evaluator: Evaluator
    rng: RandomStreams
    device: torch.device
    remarks: tuple[str, ...] = ()
    """What was decided for the user while the parts were made."""

    def close(self) -> None:
        """End every simulator. A second call does nothing."""
        with ExitStack() as stack:  # one that fails to close does not keep the others
            stack.callback(self.train_env.close)
            stack.callback(self.evaluator.close)


def check_sizes(workflow: WorldModelWorkflow, loaded: Loaded) -> None:
    """Refuse a checkpoint of another workflow or of other sizes, before anything of it is used."""
    name = type(workflow).__name__
    if loaded.state["workflow_name"] != name:
        raise ReverieError(
            f"checkpoint {loaded.name} was written by the workflow {loaded.state['workflow_name']}, not by {name}."
        )
    current = workflow.get_state()
    compare_shapes(
        {part: current[part] for part in SHAPED},
        {part: loaded.state[part] for part in SHAPED},
        where=f"checkpoint {loaded.name}",
    )


def check_phases(phases: tuple[PhaseSpec, ...], parts: Parts) -> None:
    """Whatever a phase names must exist, and be found missing before the first step."""
    for phase in phases:
        where = f"training.phases ('{phase.name}')"
        if phase.buffer is not None and phase.buffer not in parts.buffers:
            names = ", ".join(parts.buffers)
            raise ReverieError(f"{where}: there is no buffer '{phase.buffer}'; the configuration has: {names}.")
        if phase.buffer == EVALUATION_BUFFER and phase.has_hook("collect"):
            raise ReverieError(f"{where}: the buffer '{phase.buffer}' is for evaluations; collect into another one.")
        for hook in phase.hooks:
            if hook.kind == "update":
                _check_hook(hook, parts.workflow, where=where)
            if hook.batch is not None and phase.buffer is not None:
                _check_batch(hook.batch, parts.buffers[phase.buffer], parts.workflow, where=where, name=phase.buffer)
        parts.workflow.policy(phase.controller)


def _check_hook(hook: HookSpec, workflow: WorldModelWorkflow, *, where: str) -> None:
    method = getattr(workflow, hook.name, None)
    if not callable(method):
        raise ReverieError(f"{where}: the workflow {type(workflow).__name__} has no hook '{hook.name}'.")
    batch = () if hook.batch is None else (None,)
    try:
        inspect.signature(method).bind(*batch, phase=None)
    except TypeError as error:
        given = "without a batch" if hook.batch is None else "with a batch"
        raise ReverieError(f"{where}: '{hook.name}' cannot be called as a hook {given} ({error}).") from error


def _check_batch(batch: BatchSpec, buffer: Buffer, workflow: WorldModelWorkflow, *, where: str, name: str) -> None:
    for sampler in batch.samplers:
        if sampler not in buffer.samplers:
            has = ", ".join(buffer.samplers)
            raise ReverieError(f"{where}: the buffer '{name}' has no sampler '{sampler}'; it has: {has}.")
    drawing = [sampler for sampler, _ in shares(batch.size, batch.sampler)]
    for sampler in batch.samplers:
        if sampler not in drawing:
            raise ReverieError(
                f"{where}: '{sampler}' would draw none of {batch.size} sequences; give it a larger fraction, or make "
                "the batch larger."
            )
    if "fresh_first" in batch.samplers and not batch.crosses_episodes:
        raise ReverieError(f"{where}: the sampler 'fresh_first' crosses episodes; choose another, or let it.")
    if "prioritized" in batch.samplers and not workflow.gives_priorities:
        kind = type(workflow).__name__
        raise ReverieError(f"{where}: the sampler 'prioritized' needs priorities, which {kind} does not give.")
    if batch.length < workflow.min_batch_length:
        raise ReverieError(f"{where}: batch.length must be at least {workflow.min_batch_length}, got {batch.length}.")
    if not buffer.could_sample(batch.windows_needed, batch.length + workflow.context_rows):
        larger = "name a larger dataset" if isinstance(buffer, OfflineBuffer) else f"make buffer.{name}.capacity larger"
        raise ReverieError(
            f"{where}: the buffer '{name}' will never hold {batch.windows_needed} windows of {batch.length} rows; "
            f"{larger} or the batch smaller."
        )
    length = batch.length + workflow.context_rows
    if isinstance(buffer, OfflineBuffer) and not buffer.can_sample(
        batch.windows_needed, length, crosses_episodes=batch.crosses_episodes
    ):
        raise ReverieError(
            f"{where}: the dataset of '{name}' has fewer than {batch.windows_needed} sequences of {length} rows inside "
            "one episode; make the batch shorter or smaller, or let sequences cross episodes."
        )
