"""The policy that filters observations for an actor on latents."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from reverie.components.controllers.exploration import Exploration
from reverie.components.networks.actions import Actor
from reverie.components.networks.observations import ObservationEncoder
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel
from reverie.runtime.precision import FULL_PRECISION, Precision
from reverie.types import Carry, Mode, Observation


class DreamerPolicy:
    """Filters observations into latents and lets an actor choose. It stores what a replayed window starts from.

    Without a stream for a mode, latents and actions are the most likely ones.
    """

    def __init__(
        self,
        encoder: ObservationEncoder,
        rssm: StateSpaceModel,
        actor: Actor,
        *,
        rngs: Mapping[Mode, Generator] | Mapping[Mode, None],
        exploration: Exploration | None = None,
        precision: Precision = FULL_PRECISION,
    ) -> None:
        self._encoder, self._rssm, self._actor = encoder, rssm, actor
        self._rngs, self._precision = rngs, precision
        self._exploration = exploration or Exploration()
        self._exploration.check(actor.space)

    def initial(self, num_envs: int) -> Carry:
        device = next(self._rssm.parameters()).device
        latent = self._rssm.initial(num_envs, device).detach()
        action = torch.zeros(num_envs, self._actor.space.dim, device=device)
        return {"deter": latent.deter, "stoch": latent.stoch, "action": action}

    @torch.no_grad()
    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        """The carry holds the action as a vector, the form in which the RSSM reads it."""
        with self._precision.applied():
            latent, action = self._latent_and_action(carry, obs, mode)
        carry = {"deter": latent.deter, "stoch": latent.stoch, "action": self._actor.vector(action)}
        return carry, action, self._rssm.stored(latent)

    def _latent_and_action(self, carry: Carry, obs: Observation, mode: Mode) -> tuple[Latent, Tensor]:
        rng = self._rngs[mode]
        latents, _ = self._rssm.observe(
            Latent(deter=carry["deter"], stoch=carry["stoch"]),
            self._encoder(obs.obs).unsqueeze(1),
            carry["action"].unsqueeze(1),
            obs.is_first.unsqueeze(1),
            rng,
        )
        latent = Latent(deter=_sound(latents.deter[:, 0]), stoch=_sound(latents.stoch[:, 0]))
        return latent, self._chosen(latent, rng, mode)

    def _chosen(self, latent: Latent, rng: Generator | None, mode: Mode) -> Tensor:
        is_greedy = mode == "eval" and self._exploration.evaluates_greedily
        action = self._actor(latent.feature).sample(None if is_greedy else rng)
        return self._exploration.explored(action, self._actor.space, rng) if mode == "train" else action


def _sound(value: Tensor) -> Tensor:
    """Zero, as at the start of an episode, where an observation that is no number would poison all that follow."""
    return torch.nan_to_num(value, nan=0.0, posinf=0.0, neginf=0.0)
