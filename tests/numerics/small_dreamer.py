"""A DreamerV3 of the smallest size, wired as a run wires it, and data for it that never change."""

from __future__ import annotations

import copy
from functools import cache

import torch
from omegaconf import DictConfig
from torch import Tensor

from reverie.build import assemble_workflow
from reverie.commands.composition import composed_run
from reverie.components.representation_learners.latents import Latent
from reverie.runtime.rng import RandomStreams
from reverie.types import Batch, Phase, RowIndex, Space, Spaces
from reverie.workflows.dreamer import Dreamer, without_context
from reverie.workflows.dreamer_records import Modelled

OBS_DIM, ACTIONS = 4, 3
SPACES = Spaces(
    obs={"vector": Space(shape=(OBS_DIM,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=ACTIONS)
)
CPU = torch.device("cpu")


def composed(*overrides: str) -> DictConfig:
    return composed_once("experiment=dreamer_cartpole", "size=debug", *overrides)


def composed_once(*overrides: str) -> DictConfig:
    """A copy for each who asks: Hydra takes a tenth of a second, and many tests ask for the same."""
    return copy.deepcopy(_composed(*overrides))


@cache
def _composed(*overrides: str) -> DictConfig:
    return composed_run(overrides)


def small_dreamer(*overrides: str, spaces: Spaces = SPACES) -> Dreamer:
    rng = RandomStreams(0, device=CPU)
    workflow = assemble_workflow(composed(*overrides), spaces=spaces, train_env=None, rng=rng, device=CPU, allow=None)
    assert isinstance(workflow, Dreamer)
    return workflow


def shaken_dreamer(*overrides: str, size: float = 0.5, spaces: Spaces = SPACES) -> Dreamer:
    """All weights moved by noise: a fresh model's zero outputs would hide what depends on what."""
    workflow = small_dreamer(*overrides, spaces=spaces)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in workflow.modules().values():
            for parameter in module.parameters():
                parameter += size * torch.randn(parameter.shape, generator=rng)
    return workflow


def first_latent(workflow: Dreamer, batch: Batch) -> Latent:
    """What is stored with the first row of ``batch``."""
    return workflow._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})


def modelled(workflow: Dreamer, batch: Batch) -> Modelled:
    """What the world model makes of ``batch``, from the latents stored with its first row."""
    return workflow._modelled(first_latent(workflow, batch), batch, without_context(batch))


def phase() -> Phase:
    return Phase(name="learn", type="online", progress=torch.zeros(()))


def synthetic_batch(seed: int = 0, *, size: int = 4, length: int = 7, spaces: Spaces = SPACES) -> Batch:
    """Random rows with one episode border and one termination; the first row is context. Sizes of `size=debug`."""
    rng = torch.Generator().manual_seed(seed)
    flags = torch.zeros(size, length, dtype=torch.bool)
    is_first, is_last, is_terminal = flags.clone(), flags.clone(), flags.clone()
    is_last[0, 2], is_terminal[0, 2], is_first[0, 3] = True, True, True
    is_last[1, 4], is_first[1, 5] = True, True
    return Batch(
        obs={key: values(space, size, length, rng) for key, space in spaces.obs.items()},
        reward=torch.randn(size, length, generator=rng),
        is_first=is_first,
        is_last=is_last,
        is_terminal=is_terminal,
        action=values(spaces.action, size, length, rng),
        stored={
            "deter": torch.randn(size, length, 8, generator=rng).tanh().to(torch.bfloat16),
            "stoch": torch.randint(4, (size, length, 2), generator=rng).to(torch.uint8),
        },
        index=RowIndex(stream=torch.zeros(size, dtype=torch.int64), row=torch.zeros(size, length, dtype=torch.int64)),
    )


def values(space: Space, size: int, length: int, rng: torch.Generator) -> Tensor:
    if space.is_image:
        return torch.randint(256, (size, length, *space.shape), generator=rng, dtype=torch.uint8)
    if isinstance(space.classes, tuple):
        return torch.stack([torch.randint(num, (size, length), generator=rng) for num in space.classes], -1)
    if space.classes is not None:
        return torch.randint(space.classes, (size, length), generator=rng)
    return torch.randn(size, length, *space.shape, generator=rng)
