"""The policies of TD-MPC: by planning with its model, or by its learned policy alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import torch
from torch import Generator, Tensor

from reverie.components.controllers.action_search import GaussianSearch
from reverie.components.controllers.latent_model import LatentModel
from reverie.components.controllers.mppi import Mppi, PlanNoise
from reverie.components.controllers.plan_layers import can_be_layers
from reverie.components.networks.latent_encoder import LatentEncoder
from reverie.runtime.compilation import plans_have_kernels
from reverie.runtime.kernel_room import HOPPER_BYTES, shared_bytes
from reverie.runtime.precision import FULL_PRECISION, Precision
from reverie.types import Carry, Mode, Observation

_FEW_PLANS = 1024
"""Up to so many our own kernels make them, each in a long chain of small steps. In their first form, 512 took 1.2 ms
instead of 2.2 on an H200, but 8192 took 11.5 ms instead of 6.3."""


class PlanningPolicy:
    """Plans anew at every step. What it remembers of each environment is the mean of the plan before."""

    can_lag: ClassVar[bool] = False
    """Schedules count updates where they are made, and not in a copy; kernels know where the weights themselves lie."""

    def __init__(
        self,
        encoder: LatentEncoder,
        model: LatentModel,
        planner: Mppi,
        *,
        rngs: Mapping[Mode, Generator],
        precision: Precision = FULL_PRECISION,
    ) -> None:
        self._encoder, self._model, self._planner = encoder, model, planner
        self._rngs, self._precision = rngs, precision
        self._fused = _fused_plans(model, planner, precision)

    def initial(self, num_envs: int) -> Carry:
        device = next(self._model.prior.parameters()).device
        return {"mean": torch.zeros(num_envs, self._planner.horizon, self._model.prior.action_dim, device=device)}

    @torch.no_grad()
    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        rng = self._rngs[mode]
        num_envs = len(obs.is_first)
        noise = self._planner.noise(num_envs, self._model, rng, is_greedy=mode == "eval")
        shift = self._encoder.shift((num_envs,), rng)
        previous = carry["mean"].masked_fill(obs.is_first.view(-1, 1, 1), 0.0).transpose(0, 1)
        with self._precision.applied():
            latent = self._encoder(obs.obs, shift)
            if self._fused is not None and num_envs * self._planner.samples <= _FEW_PLANS:
                action, mean = self._fused(latent, previous, noise)
            else:
                plan = self._planner(self._model.about(self._encoder, obs.obs), latent, previous, noise)
                action, mean = plan.action, plan.mean
        action = torch.nan_to_num(action, nan=0.0)  # an observation that is no number has no plan
        carry = {"mean": torch.nan_to_num(mean, nan=0.0).transpose(0, 1).contiguous()}
        return carry, self._model.prior.native(action), {}


_Planning = Callable[[Tensor, Tensor, PlanNoise], tuple[Tensor, Tensor]]


def _fused_plans(model: LatentModel, planner: Mppi, precision: Precision) -> _Planning | None:
    """Plans in kernels of their own, where a Hopper GPU makes them with the networks that the kernels know."""
    search, device = planner.search, next(model.prior.parameters()).device
    if not plans_have_kernels() or shared_bytes(device) < HOPPER_BYTES or planner.horizon_schedule is not None:
        return None
    if type(search) is not GaussianSearch or not can_be_layers(model):
        return None
    from reverie.components.controllers.fused_plans import FusedPlans  # Triton is not everywhere where torch is

    return FusedPlans(planner, search, model, precision.dtype, has_overlap=True)


class PriorPolicy:
    """Acts as the learned policy does: drawn in training, without noise in evaluations."""

    def __init__(
        self,
        encoder: LatentEncoder,
        model: LatentModel,
        *,
        rngs: Mapping[Mode, Generator],
        precision: Precision = FULL_PRECISION,
    ) -> None:
        self._encoder, self._model, self._rngs, self._precision = encoder, model, rngs, precision

    def initial(self, num_envs: int) -> Carry:
        return {}

    @torch.no_grad()
    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        rng, prior, shape = self._rngs[mode], self._model.prior, (len(obs.is_first),)
        noise, shift = prior.noise(shape, rng), self._encoder.shift(shape, rng)
        with self._precision.applied():
            draw = prior(self._encoder(obs.obs, shift), noise, self._encoder.action_mask(obs.obs))
        action = draw.mode if mode == "eval" else draw.action
        return carry, prior.native(torch.nan_to_num(action, nan=0.0)), {}
