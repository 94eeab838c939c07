"""An algorithm with a replay of made-up rows, for measuring and comparing its updates without a simulator."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
from omegaconf import DictConfig

from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.build import assemble_workflow, phases_of
from reverie.configuration import Allow, section
from reverie.orchestration.updating import Update
from reverie.runtime.capture import Captured
from reverie.runtime.device import RuntimeConfig, prepare_torch
from reverie.runtime.rng import RandomStreams
from reverie.types import Observation, Phase, ReverieError, Row, Space, Spaces
from reverie.workflows.base import WorldModelWorkflow


@dataclass(frozen=True, kw_only=True, slots=True)
class Rehearsal:
    workflow: WorldModelWorkflow
    buffer: WorldModelSequenceBuffer
    update: Update
    """The first updating hook of the configuration's phases."""
    rng: RandomStreams

    def captured(self) -> Captured:
        return Captured(self.update, name="update", generators=self.rng.streams)


def rehearsal(
    config: DictConfig,
    *,
    spaces: Spaces,
    device: torch.device,
    streams: int = 16,
    rows: int = 1024,
    allow: Allow = None,
) -> Rehearsal:
    """The configured algorithm, and ``rows`` made-up rows in which its own policy acted."""
    prepare_torch(section(RuntimeConfig, config.runtime, path="runtime"), device)
    rng = RandomStreams(0, device=device)
    workflow = assemble_workflow(config, spaces=spaces, train_env=None, rng=rng, device=device, allow=allow)
    buffer = WorldModelSequenceBuffer(capacity=rows, num_streams=streams, rng=rng.stream("replay/replay"))
    _fill(buffer, workflow, spaces, rng.stream("made-up"), streams=streams, length=rows // streams)
    for spec in phases_of(config):
        for hook in spec.hooks:
            if hook.kind == "update":
                phase = Phase(name=spec.name, type=spec.type, progress=torch.zeros((), device=device))
                update = Update(
                    hook=getattr(workflow, hook.name),
                    phase=phase,
                    batch=hook.batch,
                    buffer=buffer,
                    context_rows=workflow.context_rows,
                    measuring=lambda _: nullcontext(),
                )
                return Rehearsal(workflow=workflow, buffer=buffer, update=update, rng=rng)
    raise ReverieError("no phase of this configuration updates anything.")


def _fill(
    buffer: WorldModelSequenceBuffer,
    workflow: WorldModelWorkflow,
    spaces: Spaces,
    rng: torch.Generator,
    *,
    streams: int,
    length: int,
) -> None:
    policy = workflow.policy(None)
    carry = policy.initial(streams)
    no = torch.zeros(streams, dtype=torch.bool, device=rng.device)
    for row in range(length):
        seen = Observation(
            obs={key: made_up(space, streams, rng) for key, space in spaces.obs.items()},
            reward=torch.rand(streams, device=rng.device, generator=rng),
            is_first=~no if row == 0 else no,
            is_last=no,
            is_terminal=no,
        )
        carry, action, stored = policy.act(carry, seen, mode="train")
        buffer.append(Row.complete(seen, action, stored))


def made_up(space: Space, count: int, rng: torch.Generator) -> torch.Tensor:
    """Random values of a space, one per stream."""
    shape = (count, *space.shape)
    if space.classes is not None:
        limits = torch.tensor(space.classes, device=rng.device)
        return (torch.rand(shape, device=rng.device, generator=rng) * limits).long()
    if space.is_image:
        return torch.randint(0, 256, shape, dtype=torch.uint8, device=rng.device, generator=rng)
    return torch.randn(shape, device=rng.device, generator=rng)
