"""Uniform random actions: the baseline everything is compared with."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from reverie.types import Carry, Mode, Observation, Space


class RandomPolicy:
    """Draws every action from the action space, whatever it sees. Training and evaluation have streams of their own."""

    def __init__(self, *, space: Space, rngs: Mapping[Mode, Generator]) -> None:
        self._space = space
        self._rngs = rngs

    def initial(self, num_envs: int) -> Carry:
        return {}

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        return carry, random_action(self._space, len(obs.reward), self._rngs[mode]), {}


def random_action(space: Space, count: int, rng: Generator) -> Tensor:
    """Uniform over the classes of each discrete element, over [-1, 1] in each dimension of a continuous action."""
    if isinstance(space.classes, tuple):
        drawn = [torch.randint(num, (count,), generator=rng, device=rng.device) for num in space.classes]
        return torch.stack(drawn, dim=-1)
    if space.classes is not None:
        return torch.randint(space.classes, (count,), generator=rng, device=rng.device)
    return torch.rand(count, *space.shape, generator=rng, device=rng.device) * 2 - 1
