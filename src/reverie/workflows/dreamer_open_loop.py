"""Dreamer's latents, open loop: some rows are observed, the others imagined; and decoded rows as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from reverie.components.networks.distributions import OneHot, OneHots
from reverie.components.networks.observations import Prediction
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel


def open_loop_latents(
    rssm: StateSpaceModel,
    carry: Latent,
    tokens_BTD: Tensor,
    action_BTA: Tensor,
    is_first_BT: Tensor,
    *,
    is_context_BT: Tensor,
) -> Latent:
    """The most likely latents [B, T] of rows that begin right after ``carry``; the tokens count for context alone."""
    deters, stochs = [], []
    for step in range(is_context_BT.shape[1]):
        now = slice(step, step + 1)
        observed, _ = rssm.observe(carry, tokens_BTD[:, now], action_BTA[:, now], is_first_BT[:, now], None)
        imagined = rssm.imagine(carry, action_BTA[:, step], None)
        is_context = is_context_BT[:, step]
        carry = Latent(
            deter=_chosen(is_context, observed.deter[:, 0], imagined.deter),
            stoch=_chosen(is_context, observed.stoch[:, 0], imagined.stoch),
        )
        deters.append(carry.deter)
        stochs.append(carry.stoch)
    return Latent(deter=torch.stack(deters, 1), stoch=torch.stack(stochs, 1))


def predicted_obs(predictions: Mapping[str, Prediction], obs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """One value per key, shaped as in ``obs``: a single number has an axis of its own in the decoder alone."""
    return {key: most_likely(one).reshape(obs[key].shape) for key, one in predictions.items()}


@runtime_checkable
class HasMean(Protocol):
    def mean(self) -> Tensor: ...


def most_likely(prediction: Prediction) -> Tensor:
    """A class index where there are classes, else the mean."""
    if isinstance(prediction, OneHot | OneHots):
        return prediction.sample(None)
    assert isinstance(prediction, HasMean), f"{type(prediction).__name__} has neither classes nor a mean"
    return prediction.mean()


def _chosen(is_first_choice: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """Per batch element; the mask [B] gets the axes of what it chooses from."""
    return torch.where(is_first_choice.view(-1, *[1] * (one.ndim - 1)), one, other)
