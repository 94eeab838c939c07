"""A TD-MPC2 of the smallest size, wired as a run wires it, and data for it that never change."""

from __future__ import annotations

import torch
from small_dreamer import composed_once, phase, values
from torch import Tensor

from reverie.build import assemble_workflow
from reverie.runtime.rng import RandomStreams
from reverie.types import Batch, Observation, RowIndex, Space, Spaces
from reverie.workflows.tdmpc import Tdmpc

STATES = Spaces(
    obs={"vector": Space(shape=(4,), dtype="float32")},
    action=Space(shape=(2,), dtype="float32"),
)
PICTURES = Spaces(
    obs={"image": Space(shape=(40, 40, 3), dtype="uint8")},
    action=Space(shape=(2,), dtype="float32"),
)
CLASSES = Spaces(obs=STATES.obs, action=Space(shape=(), dtype="int64", classes=3))
SEVERAL = Spaces(obs=STATES.obs, action=Space(shape=(2,), dtype="int64", classes=(2, 3)))
BOTH = Spaces(obs={**STATES.obs, **PICTURES.obs}, action=STATES.action)
CPU = torch.device("cpu")

__all__ = [
    "BOTH",
    "CLASSES",
    "CPU",
    "PICTURES",
    "SEVERAL",
    "STATES",
    "phase",
    "seen",
    "shaken_tdmpc",
    "small_tdmpc",
    "synthetic_batch",
]


def small_tdmpc(*overrides: str, spaces: Spaces = STATES) -> Tdmpc:
    config = composed_once("task=gym_Pendulum-v1", "experiment=tdmpc_pendulum", "size=debug", *overrides)
    rng = RandomStreams(0, device=CPU)
    workflow = assemble_workflow(config, spaces=spaces, train_env=None, rng=rng, device=CPU, allow=None)
    assert isinstance(workflow, Tdmpc)
    return workflow


def shaken_tdmpc(*overrides: str, size: float = 0.3, spaces: Spaces = STATES) -> Tdmpc:
    """All weights moved by noise: a fresh model's zero outputs would hide what depends on what."""
    workflow = small_tdmpc(*overrides, spaces=spaces)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in workflow.modules().values():
            for parameter in module.parameters():
                parameter += size * torch.randn(parameter.shape, generator=rng)
    return workflow


def synthetic_batch(seed: int = 0, *, size: int = 4, length: int = 4, spaces: Spaces = STATES) -> Batch:
    """Random rows inside episodes, one of which ends with its last row."""
    rng = torch.Generator().manual_seed(seed)
    flags = torch.zeros(size, length, dtype=torch.bool)
    is_last = flags.clone()
    is_last[0, -1] = True
    return Batch(
        obs={key: values(space, size, length, rng) for key, space in spaces.obs.items()},
        reward=torch.randn(size, length, generator=rng),
        is_first=flags,
        is_last=is_last,
        is_terminal=is_last.clone(),
        action=actions(spaces.action, size, length, rng),
        stored={},
        index=RowIndex(stream=torch.zeros(size, dtype=torch.int64), row=torch.zeros(size, length, dtype=torch.int64)),
    )


def actions(space: Space, size: int, length: int, rng: torch.Generator) -> Tensor:
    drawn = values(space, size, length, rng)
    return drawn if space.is_discrete else drawn.clamp(-1, 1)


def seen(obs: dict[str, Tensor], *, is_first: Tensor | None = None) -> Observation:
    count = len(next(iter(obs.values())))
    no = torch.zeros(count, dtype=torch.bool)
    first = no if is_first is None else is_first
    return Observation(obs=obs, reward=torch.zeros(count), is_first=first, is_last=no, is_terminal=no)
