"""Where the weights of a linear controller come from while it acts: one vector for each environment."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Generator, Tensor

from reverie.components.controllers.linear_controller import LinearController
from reverie.types import require


class Weights(Protocol):
    """Where the controller's weights come from while it acts."""

    def begin(self, num_envs: int) -> Tensor:
        """[num_envs, parameters]"""
        ...

    def next(self, present: Tensor, is_first: Tensor, rng: Generator) -> Tensor:
        """The weights from now on; ``is_first`` [N] where an episode begins."""
        ...


class OwnWeights:
    """Those that the controller holds, as they are at each step."""

    def __init__(self, controller: LinearController) -> None:
        self._controller = controller

    def begin(self, num_envs: int) -> Tensor:
        return self._controller.weights.expand(num_envs, -1)

    def next(self, present: Tensor, is_first: Tensor, rng: Generator) -> Tensor:
        return self.begin(len(present))


class GivenWeights:
    """Those of an evolution's contestants, one for each environment, given before a round begins."""

    def __init__(self, device: torch.device) -> None:
        self.present = torch.zeros(0, device=device)

    def begin(self, num_envs: int) -> Tensor:
        return self.present.expand(num_envs, -1) if len(self.present) == 1 else self.present

    def next(self, present: Tensor, is_first: Tensor, rng: Generator) -> Tensor:
        return present


class RandomWeights:
    """New ones for every episode: Cauchy numbers, a few of which are extreme, times a uniform share of ``scale``."""

    def __init__(self, controller: LinearController, *, scale: float = 1.0) -> None:
        require("scale of random weights", scale, at_least=0)
        self._controller, self._scale = controller, scale

    def begin(self, num_envs: int) -> Tensor:
        return self._controller.weights.new_zeros(num_envs, self._controller.parameter_count)

    def next(self, present: Tensor, is_first: Tensor, rng: Generator) -> Tensor:
        uniform = torch.rand(present.shape, device=present.device, generator=rng)
        share = torch.rand(len(present), 1, device=present.device, generator=rng)
        cauchy = torch.tan(torch.pi * (uniform - 0.5))
        return torch.where(is_first.unsqueeze(-1), self._scale * share * cauchy, present)
