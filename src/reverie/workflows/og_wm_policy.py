"""The policy of World Models: a picture becomes a latent, a linear controller acts on it and on a memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Generator, Tensor

from reverie.components.controllers.controller_weights import Weights
from reverie.components.controllers.linear_controller import LinearController
from reverie.components.dynamics.mdn_rnn import MdnRnn, Memory
from reverie.components.representation_learners.conv_vae import ConvVae, sampled
from reverie.runtime.capture import not_capturable
from reverie.runtime.precision import Precision
from reverie.types import Carry, Mode, Observation, Policy


class LatentPolicy:
    """Acts on the latent and on the memory before its own action; stores mean and log variance of the latent."""

    can_lag: ClassVar[bool] = False
    """Evolution gives out other controllers between two updates."""

    def __init__(
        self,
        vae: ConvVae,
        rnn: MdnRnn,
        controller: LinearController,
        weights: Weights,
        *,
        rngs: Mapping[Mode, Generator],
        acts_on: Literal["sample", "mean"],
        precision: Precision,
    ) -> None:
        self._vae, self._rnn, self._controller, self._weights = vae, rnn, controller, weights
        self._rngs, self._acts_on, self._precision = rngs, acts_on, precision

    def initial(self, num_envs: int) -> Carry:
        memory = self._rnn.initial(num_envs)
        return {"hidden": memory.hidden, "cell": memory.cell, "weights": self._weights.begin(num_envs)}

    @not_capturable
    @torch.no_grad()
    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        rng = self._rngs[mode]
        with self._precision.applied():
            mean, log_variance = self._vae.encoded(obs.obs)
        latent = mean
        if self._acts_on == "sample":
            noise = torch.randn(mean.shape, device=mean.device, generator=rng)
            latent = sampled(mean, log_variance, noise)
        goes_on = (~obs.is_first).float().unsqueeze(-1)
        memory = Memory(hidden=carry["hidden"] * goes_on, cell=carry["cell"] * goes_on)
        weights = self._weights.next(carry["weights"], obs.is_first, rng)
        action = self._controller.actions(weights, latent, memory)
        after = self._rnn.step(memory, latent, self._controller.vector(action))
        carry = {"hidden": after.hidden, "cell": after.cell, "weights": weights}
        return carry, action, {"mean": mean, "log_variance": log_variance}


class BlindPolicy:
    """A policy that looks at nothing; its rows have room for the latents that `encode` puts there."""

    def __init__(self, policy: Policy, *, latent: int) -> None:
        self._policy, self._latent = policy, latent

    def initial(self, num_envs: int) -> Carry:
        return self._policy.initial(num_envs)

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        carry, action, _ = self._policy.act(carry, obs, mode=mode)
        none = torch.zeros(len(obs.reward), self._latent, device=obs.reward.device)
        return carry, action, {"mean": none, "log_variance": none.clone()}
