"""Dreamer's world model, open loop: observe some rows, imagine the others, decode them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from reverie.components.networks.distributions import OneHot, OneHots
from reverie.components.networks.heads import BinaryHead, TwoHotHead
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder, Prediction
from reverie.components.representation_learners.rssm import Latent, Rssm
from reverie.types import Batch
from reverie.workflows.open_loop import OpenLoop


@dataclass(frozen=True, slots=True)
class WorldModel:
    """The parts that observe, imagine and decode."""

    encoder: ObservationEncoder
    rssm: Rssm
    decoder: ObservationDecoder
    reward_head: TwoHotHead
    continue_head: BinaryHead

    @torch.no_grad()
    def open_loop(
        self, carry: Latent, seen: Batch, previous_action: Tensor, is_context: Tensor, *, discount: float
    ) -> OpenLoop:
        """Predictions of ``seen``, whose first row comes right after ``carry``."""
        latents = self._latents(carry, self.encoder(seen.obs), previous_action, seen.is_first, is_context)
        decoded = self.decoder(latents.deter, latents.stoch_vector)
        return OpenLoop(
            # A single number has an axis of its own in the decoder, and none in the rows.
            obs={key: most_likely(one).reshape(seen.obs[key].shape) for key, one in decoded.items()},
            reward=self.reward_head(latents.feature).mean(),
            # The head's target is discounted: what it predicts beyond the discount is the probability.
            live=(self.continue_head(latents.feature).mean() / discount).clamp(max=1.0),
            discount=discount,
        )

    def _latents(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, is_context_BT: Tensor
    ) -> Latent:
        deters, stochs = [], []
        for step in range(is_context_BT.shape[1]):
            now = slice(step, step + 1)
            observed, _ = self.rssm.observe(carry, tokens_BTD[:, now], action_BTA[:, now], is_first_BT[:, now], None)
            imagined = self.rssm.imagine(carry, action_BTA[:, step], None)
            is_context = is_context_BT[:, step]
            carry = Latent(
                deter=_chosen(is_context, observed.deter[:, 0], imagined.deter),
                stoch=_chosen(is_context, observed.stoch[:, 0], imagined.stoch),
            )
            deters.append(carry.deter)
            stochs.append(carry.stoch)
        return Latent(deter=torch.stack(deters, 1), stoch=torch.stack(stochs, 1))


@runtime_checkable
class HasMean(Protocol):
    def mean(self) -> Tensor: ...


def most_likely(prediction: Prediction) -> Tensor:
    """One value per key: a class index where there are classes, else the mean."""
    if isinstance(prediction, OneHot | OneHots):
        return prediction.sample(None)
    assert isinstance(prediction, HasMean), f"{type(prediction).__name__} is neither classes nor has a mean"
    return prediction.mean()


def _chosen(is_first_choice: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Per batch element; the mask [B] gets the axes of what it chooses from."""
    return torch.where(is_first_choice.view(-1, *[1] * (one.ndim - 1)), one, other)
