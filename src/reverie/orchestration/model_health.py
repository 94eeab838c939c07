"""Numbers that say how well a world model predicts rows that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from reverie.types import Observation, Spaces
from reverie.workflows.open_loop import OpenLoop

LEADS = (1, 5, 15)
"""Imagined steps after which errors are measured; returns are summed over the last of them."""


def model_health(seen: Observation, predicted: OpenLoop, lead_BT: Tensor, spaces: Spaces) -> dict[str, float]:
    """Metrics over the imagined rows: those whose lead is not 0. All tensors are on the CPU.

    A number that cannot be told (no row with that lead, no spread to correlate) is left out.
    """
    is_imagined = lead_BT > 0
    metrics = dict(_errors(seen, predicted, lead_BT, spaces))
    if predicted.reward is not None:
        metrics |= _reward_errors(predicted.real_reward, predicted.reward, lead_BT, predicted.discount)
    if predicted.live is not None:
        live, predicted_live = (~seen.is_terminal)[is_imagined].double(), predicted.live[is_imagined].double()
        metrics["continue_brier"] = float((predicted_live - live).square().mean())
        metrics["continue_predicted"] = float(predicted_live.mean())
        metrics["continue_real"] = float(live.mean())
    return metrics


def _reward_errors(real_BT: Tensor, predicted_BT: Tensor, lead_BT: Tensor, discount: float) -> dict[str, float]:
    """Of single rewards, and of their sums."""
    metrics: dict[str, float] = {}
    reward, predicted_reward = real_BT[lead_BT > 0].double(), predicted_BT[lead_BT > 0].double()
    metrics["reward_bias"] = float((predicted_reward - reward).mean())
    metrics["reward_error"] = float((predicted_reward - reward).abs().mean())
    if reward.var(correction=0) > 0 and predicted_reward.var(correction=0) > 0:
        metrics["reward_correlation"] = float(torch.corrcoef(torch.stack([reward, predicted_reward]))[0, 1])
    real, imagined = (_returns(one, lead_BT, discount) for one in (real_BT, predicted_BT))
    metrics["return_real"] = float(real.mean())
    metrics["return_imagined"] = float(imagined.mean())
    metrics["return_error"] = float((imagined - real).abs().mean())
    return metrics


def _errors(seen: Observation, predicted: OpenLoop, lead_BT: Tensor, spaces: Spaces) -> Iterator[tuple[str, float]]:
    """The mean error of each kind of observation, over its keys, and of latents, after each of ``LEADS`` steps."""
    kinds: dict[str, list[str]] = {}
    for key in predicted.obs:
        space = spaces.obs[key]
        kinds.setdefault("image" if space.is_image else "class" if space.is_discrete else "vector", []).append(key)
    for lead in LEADS:
        chosen = lead_BT == lead
        if not chosen.any():
            continue
        for kind, keys in kinds.items():
            errors = [_error(kind, seen.obs[key][chosen], predicted.obs[key][chosen]) for key in keys]
            yield f"{kind}_error_{lead}", float(torch.stack(errors).mean())
        if predicted.latent_error is not None:
            yield f"latent_error_{lead}", float(predicted.latent_error[chosen].double().mean())


def _error(kind: str, truth: Tensor, predicted: Tensor) -> Tensor:
    """The share of wrong classes, else the mean squared error; pictures count from 0 to 1."""
    if kind == "class":
        return (truth != predicted).double().mean()
    scaled = truth.double() / 255 if kind == "image" else truth.double()
    return (predicted.double() - scaled).square().mean()


def _returns(reward_BT: Tensor, lead_BT: Tensor, discount: float) -> Tensor:
    """The discounted sum of the first rewards of every imagined stretch, one number each."""
    number_BT = (lead_BT == 1).long().cumsum(1)
    stretch_BT = number_BT + torch.arange(len(lead_BT)).unsqueeze(1) * (lead_BT.shape[1] + 1)
    counted = (lead_BT > 0) & (lead_BT <= LEADS[-1])
    _, index = stretch_BT[counted].unique(return_inverse=True)
    worth = reward_BT[counted].double() * discount ** (lead_BT[counted] - 1)
    return torch.zeros(int(index.max()) + 1, dtype=torch.float64).index_add(0, index, worth)
