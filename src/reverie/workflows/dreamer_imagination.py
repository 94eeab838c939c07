"""Dreamer's imagined sequences: an actor that acts inside the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from reverie.components.networks.actions import ActionHead
from reverie.components.networks.lowered import LoweredCopy
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel
from reverie.runtime.compilation import compiled_step
from reverie.runtime.precision import Precision
from reverie.workflows.dreamer_records import Dreamed

Noises = Sequence[Tensor | None]


class Imagination:
    """Every step uses the same weights, so in lowered precision they are converted once for all steps.

    With ``has_graph`` actions keep their gradients to the actor and through the model.
    """

    def __init__(self, rssm: StateSpaceModel, actor: ActionHead, *, precision: Precision, has_graph: bool) -> None:
        self._rssm, self._actor, self._dtype = rssm, actor, precision.dtype
        self.copies: list[LoweredCopy[StateSpaceModel] | LoweredCopy[ActionHead]] = []
        if precision.is_lowered:
            self.copies.append(model := LoweredCopy(rssm))
            self._rssm = model.network
            if not has_graph:  # an actor that learns through its own actions needs the weights that have gradients
                self.copies.append(acting := LoweredCopy(actor))
                self._actor = acting.network

    def __call__(self, starts: Latent, *, horizon: int, rng: Generator | None) -> Dreamed:
        """Follow the actor for ``horizon`` steps. A last action is chosen and leads nowhere."""
        for copied in self.copies:
            copied.refresh()
        choices, chances = self._noises(horizon, starts, rng)
        deter, stoch, feature = starts.deter, starts.stoch, starts.feature.to(self._dtype)
        features, actions = [feature], []
        for choice, chance in zip(choices[:-1], chances, strict=True):
            action, deter, stoch, feature = self._step(deter, stoch, feature, choice, chance)
            actions.append(action)
            features.append(feature)
        actions.append(self._chosen(feature, choices[-1]))
        return Dreamed(feature=torch.stack(features, 1), action=torch.stack(actions, 1))

    def _noises(self, horizon: int, starts: Latent, rng: Generator | None) -> tuple[Noises, Noises]:
        """What ``horizon`` + 1 actions and ``horizon`` latents are drawn with, for all steps at once."""
        count, device = len(starts.deter), starts.deter.device
        chances = self._rssm.noise((horizon, count), device, rng)
        if rng is None or chances is None:
            return [None] * (horizon + 1), [None] * horizon
        return self._actor.noise((horizon + 1, count), rng).unbind(0), chances.unbind(0)

    @compiled_step
    def _chosen(self, feature: Tensor, choice: Tensor | None) -> Tensor:
        return self._actor(feature.detach()).drawn(choice)

    @compiled_step
    def _step(
        self, deter: Tensor, stoch: Tensor, feature: Tensor, choice: Tensor | None, chance: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The action at a latent, and the latent that it leads to with its feature."""
        policy = self._actor(feature.detach())
        action = policy.drawn(choice)
        latent = self._rssm.imagined(Latent(deter=deter, stoch=stoch), policy.vector(action), chance)
        return action, latent.deter, latent.stoch, latent.feature.to(feature.dtype)
