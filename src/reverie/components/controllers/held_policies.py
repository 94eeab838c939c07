"""Random actions that go on for a while: on their way through time, or held."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from reverie.components.controllers.random_policy import random_action
from reverie.types import Carry, Mode, Observation, ReverieError, Space, require


class BrownianPolicy:
    """Each number of a continuous action walks at random between -1 and 1; an episode begins at a uniform place.

    A step of the walk has the deviation ``sqrt(interval)``.
    """

    def __init__(self, *, space: Space, rngs: Mapping[Mode, Generator], interval: float = 0.02) -> None:
        require("interval of the Brownian actions", interval, at_least=0)
        if space.is_discrete:
            raise ReverieError("Brownian actions are numbers, but those of this task are discrete: hold them instead.")
        self._space, self._rngs, self._deviation = space, rngs, math.sqrt(interval)

    def initial(self, num_envs: int) -> Carry:
        return {"action": torch.zeros(num_envs, *self._space.shape, device=self._rngs["train"].device)}

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        rng, before = self._rngs[mode], carry["action"]
        step = self._deviation * torch.randn(before.shape, device=before.device, generator=rng)
        begun = random_action(self._space, len(before), rng)
        action = torch.where(_beside(obs.is_first, before), begun, (before + step).clamp(-1, 1))
        return {"action": action}, action, {}


class HeldPolicy:
    """A uniform random action, held for 1 to ``longest`` steps, then another one."""

    def __init__(self, *, space: Space, rngs: Mapping[Mode, Generator], longest: int = 10) -> None:
        require("longest of the held actions", longest, at_least=1)
        self._space, self._rngs, self._longest = space, rngs, longest

    def initial(self, num_envs: int) -> Carry:
        device = self._rngs["train"].device
        dtype = torch.int64 if self._space.is_discrete else torch.float32
        return {
            "action": torch.zeros(num_envs, *self._space.shape, dtype=dtype, device=device),
            "left": torch.zeros(num_envs, dtype=torch.int64, device=device),
        }

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        rng, before, left = self._rngs[mode], carry["action"], carry["left"]
        drawn = random_action(self._space, len(before), rng)
        lengths = torch.randint(1, self._longest + 1, left.shape, generator=rng, device=rng.device)
        is_new = obs.is_first | (left == 0)
        action = torch.where(_beside(is_new, before), drawn, before)
        return {"action": action, "left": torch.where(is_new, lengths, left) - 1}, action, {}


def _beside(mask: Tensor, value: Tensor) -> Tensor:
    """The mask [N] with the axes of ``value``."""
    return mask.view(-1, *[1] * (value.dim() - 1))
