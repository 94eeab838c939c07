"""Dreamer's imagined sequences: an actor that acts inside the model."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Generator, Tensor

from reverie.components.networks.actions import ActionHead
from reverie.components.networks.deferred import deferred
from reverie.components.networks.lowered import LoweredCopy
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel
from reverie.runtime.compilation import compiled_step, defers_gradients
from reverie.runtime.precision import Precision
from reverie.workflows.dreamer_records import Dreamed

Noises = Sequence[Tensor | None]


class Imagination:
    """Every step uses the same weights, so in lowered precision they are converted once for all steps.

    With ``has_graph`` features have gradients through the model to the actions and on to the actor.
    """

    def __init__(self, rssm: StateSpaceModel, actor: ActionHead, *, precision: Precision, has_graph: bool) -> None:
        self._rssm, self._dtype, self._has_graph = rssm, precision.dtype, has_graph
        self._learner = self._actor = actor
        """The one that gradients reach, and the one that acts where none do."""
        self.copies: list[LoweredCopy[StateSpaceModel] | LoweredCopy[ActionHead]] = []
        if precision.is_lowered:
            self.copies = [model := LoweredCopy(rssm), acting := LoweredCopy(actor)]
            self._rssm, self._actor = model.network, acting.network

    def __call__(self, starts: Latent, *, horizon: int, rng: Generator | None) -> Dreamed:
        """Follow the actor for ``horizon`` steps. A last action is chosen and leads nowhere."""
        for copied in self.copies:
            copied.refresh()
        choices, chances = self._noises(horizon, starts, rng)
        if self._has_graph and defers_gradients():
            return self._followed(starts, choices, chances)
        actor = self._learner if self._has_graph else self._actor
        deter, stoch, feature = starts.deter, starts.stoch, starts.feature.to(self._dtype)
        features, actions = [feature], []
        for choice, chance in zip(choices[:-1], chances, strict=True):
            action, deter, stoch, feature = self._step(actor, deter, stoch, feature, choice, chance)
            actions.append(action)
            features.append(feature)
        actions.append(self._chosen(actor, feature, choices[-1])[0])
        return Dreamed(feature=torch.stack(features, 1), action=torch.stack(actions, 1).detach())

    def _followed(self, starts: Latent, choices: Noises, chances: Noises) -> Dreamed:
        """Gradients go through the model to the actions step after step, and from there to the actor all at once."""
        deter, stoch, feature = starts.deter, starts.stoch, starts.feature.to(self._dtype)
        features, actions, vectors = [feature], [], []
        for choice, chance in zip(choices[:-1], chances, strict=True):
            with torch.no_grad():
                action, vector = self._chosen(self._actor, feature, choice)
            vectors.append(vector.detach().requires_grad_())
            deter, stoch, feature = self._led(deter, stoch, vectors[-1], chance)
            actions.append(action)
            features.append(feature)
        with torch.no_grad():
            actions.append(self._chosen(self._actor, feature, choices[-1])[0])
        found = torch.stack(features, 1)
        value = found.detach()
        drawn_with = [one for one in choices[:-1] if one is not None]
        _, at_once = self._chosen(self._learner, value[:, :-1], torch.stack(drawn_with, 1) if drawn_with else None)

        def to_vectors(to_feature: Tensor) -> list[Tensor]:
            return [torch.stack(torch.autograd.grad(found, vectors, to_feature), 1)]

        [feature] = deferred([value], [at_once], to_vectors)
        return Dreamed(feature=feature, action=torch.stack(actions, 1))

    def _noises(self, horizon: int, starts: Latent, rng: Generator | None) -> tuple[Noises, Noises]:
        """What ``horizon`` + 1 actions and ``horizon`` latents are drawn with, for all steps at once."""
        count, device = len(starts.deter), starts.deter.device
        chances = self._rssm.noise((horizon, count), device, rng)
        if rng is None or chances is None:
            return [None] * (horizon + 1), [None] * horizon
        return self._actor.noise((horizon + 1, count), rng).unbind(0), chances.unbind(0)

    @compiled_step
    def _chosen(self, actor: ActionHead, feature: Tensor, choice: Tensor | None) -> tuple[Tensor, Tensor]:
        """The action at a latent, and what the model reads of it."""
        policy = actor(feature.detach())
        action = policy.drawn(choice)
        return action, policy.vector(action)

    @compiled_step
    def _led(
        self, deter: Tensor, stoch: Tensor, vector: Tensor, chance: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The latent that an action leads to, and its feature."""
        latent = self._rssm.imagined(Latent(deter=deter, stoch=stoch), vector, chance)
        return latent.deter, latent.stoch, latent.feature.to(self._dtype)

    @compiled_step
    def _step(
        self,
        actor: ActionHead,
        deter: Tensor,
        stoch: Tensor,
        feature: Tensor,
        choice: Tensor | None,
        chance: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Both in one."""
        policy = actor(feature.detach())
        action = policy.drawn(choice)
        latent = self._rssm.imagined(Latent(deter=deter, stoch=stoch), policy.vector(action), chance)
        return action, latent.deter, latent.stoch, latent.feature.to(self._dtype)
