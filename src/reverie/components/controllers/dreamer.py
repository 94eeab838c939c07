"""Dreamer's critic with its slow copy, and the policy that filters observations for an actor on latents."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.distributions import TwoHot
from reverie.components.networks.heads import OneHotHead, TwoHotHead
from reverie.components.networks.vectors import VectorEncoder
from reverie.components.representation_learners.rssm import Latent, Rssm
from reverie.types import Carry, Mode, Observation, require


class Critic(nn.Module):
    """Values a latent, beside a slow copy that only steadies it."""

    def __init__(self, *, feature_dim: int, layers: int, units: int, bins: int = 255, slow_rate: float = 0.02) -> None:
        super().__init__()
        require("slow_rate of the critic", slow_rate, at_least=0, at_most=1)
        self.online = TwoHotHead(feature_dim=feature_dim, layers=layers, units=units, bins=bins)
        self.slow = copy.deepcopy(self.online).requires_grad_(False)
        self._slow_rate = slow_rate

    def forward(self, feature: Tensor) -> TwoHot:
        return self.online(feature)

    @torch.no_grad()
    def slow_value(self, feature: Tensor) -> Tensor:
        return self.slow(feature).mean()

    @torch.no_grad()
    def update_slow(self) -> None:
        for slow, online in zip(self.slow.parameters(), self.online.parameters(), strict=True):
            slow.lerp_(online, self._slow_rate)


class DreamerPolicy:
    """Filters observations into latents and lets an actor choose. It stores what a replayed window starts from."""

    def __init__(
        self, encoder: VectorEncoder, rssm: Rssm, actor: OneHotHead, *, rngs: Mapping[Mode, Generator]
    ) -> None:
        self._encoder, self._rssm, self._actor = encoder, rssm, actor
        self._rngs = rngs

    def initial(self, num_envs: int) -> Carry:
        device = next(self._rssm.parameters()).device
        latent = self._rssm.initial(num_envs, device)
        return {
            "deter": latent.deter,
            "stoch": latent.stoch,
            "action": torch.zeros(num_envs, dtype=torch.int64, device=device),
        }

    @torch.no_grad()
    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        rng = self._rngs[mode]
        latents, _ = self._rssm.observe(
            Latent(deter=carry["deter"], stoch=carry["stoch"]),
            self._encoder(obs.obs).unsqueeze(1),
            one_hot_action(carry["action"], self._actor.classes).unsqueeze(1),
            obs.is_first.unsqueeze(1),
            rng,
        )
        latent = Latent(deter=latents.deter[:, 0], stoch=latents.stoch[:, 0])
        action = self._actor(latent.feature).sample(rng)
        return {"deter": latent.deter, "stoch": latent.stoch, "action": action}, action, stored_latent(latent)


def one_hot_action(index: Tensor, classes: int) -> Tensor:
    return F.one_hot(index, classes).float()


def stored_latent(latent: Latent) -> dict[str, Tensor]:
    """The compact form a buffer keeps: bfloat16 deter and one class id per variable."""
    return {"deter": latent.deter.to(torch.bfloat16), "stoch": latent.stoch.argmax(-1).to(torch.uint8)}


def restored_latent(stored: Mapping[str, Tensor], classes: int) -> Latent:
    return Latent(deter=stored["deter"].float(), stoch=F.one_hot(stored["stoch"].long(), classes).float())
