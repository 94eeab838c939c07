"""What an agent had planned, beside what came: plans as an animated GIF, their numbers as one PNG."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice

import numpy as np
import torch

from reverie.orchestration.pictures import Picture
from reverie.orchestration.plan_plots import PlannedNumber, Worth, plan_plot
from reverie.orchestration.plan_video import plan_video
from reverie.types import Observation, Spaces
from reverie.workflows.plans import Plans

MAX_NUMBERS = 5
"""Numbers of an observation that are drawn; a vector may have hundreds."""
_KNOWN = 0.9
"""Share of a discounted return that must lie within the rows that are shown, for it to count as known."""


def plan_pictures(plans: Plans, episode: Observation, spaces: Spaces, *, columns: int) -> dict[str, Picture]:
    """All tensors are on the CPU; ``episode`` [1, T]. Up to ``columns`` moments are shown in detail."""
    count = len(plans.row)
    shown = torch.linspace(0, count - 1, min(columns, count)).round().long()
    worth = _worth(plans, episode)
    ahead = plans.row[shown, None] + torch.arange(plans.reward.shape[-1] + 1)  # rows that the plans speak of
    came = {key: episode.obs[key][0][ahead].numpy() for key in plans.obs}
    planned = {key: value[shown].numpy() for key, value in plans.obs.items()}
    pictures = {
        f"plans/{key}": plan_video(came[key], planned[key], worth, shown=shown.tolist(), rank=plans.rank.tolist())
        for key in planned
        if spaces.obs[key].is_image
    }
    numbers = [
        PlannedNumber(
            name="reward",
            first_step=1,
            came=plans.real_reward[ahead[:, 1:]].numpy(),
            planned=plans.reward[shown].numpy(),
        )
    ]
    vectors = {key: value for key, value in planned.items() if not spaces.obs[key].is_image}
    numbers += islice(_numbers(came, vectors), MAX_NUMBERS)
    pictures["plans/lines"] = plan_plot(worth, numbers, shown=shown.tolist())
    return pictures


def _worth(plans: Plans, episode: Observation) -> Worth:
    reward, length = plans.real_reward.double().numpy(), len(plans.real_reward)
    came = np.zeros(length)
    for row in range(length - 2, -1, -1):
        came[row] = reward[row + 1] + plans.discount * came[row + 1]
    missing = plans.discount ** np.arange(length - 1, -1, -1)  # what counts beyond the last row, of all that counts
    is_known = missing <= 1 - _KNOWN if not bool(episode.is_terminal[0, -1]) else np.ones(length, bool)
    return Worth(row=plans.row.numpy(), planned=plans.worth.numpy(), came=came, is_known=is_known)


def _numbers(came: Mapping[str, np.ndarray], planned: Mapping[str, np.ndarray]) -> Iterator[PlannedNumber]:
    """One for a single number, else one for every element of the vector."""
    for key, expected in planned.items():
        if came[key].ndim == 2:
            yield PlannedNumber(name=key, first_step=0, came=came[key], planned=expected)
            continue
        for index in range(came[key].shape[-1]):
            parts = {"came": came[key][..., index], "planned": expected[..., index]}
            yield PlannedNumber(name=f"{key}[{index}]", first_step=0, **parts)
