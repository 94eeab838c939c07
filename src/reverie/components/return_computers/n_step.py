"""n-step return: n rewards, then the value of the state that they lead to."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.types import ReverieError


def n_step_return(reward: Tensor, discount: Tensor, value: Tensor, *, steps: int) -> Tensor:
    """G^k_t = r_{t+1} + c_{t+1} * G^{k-1}_{t+1}, G^0_t = v_t; the result is G^n, cut short where the horizon ends.

    Shapes and alignment as in ``ReturnComputer``. All t are computed together, so the cost is n operations.
    """
    assert reward.shape == discount.shape == value.shape, "reward, discount and value must have one shape [N, H+1]"
    horizon = value.shape[1] - 1
    assert horizon >= 1, "a return needs at least one step"
    arriving_reward, arriving_discount, last = reward[:, 1:], discount[:, 1:], value[:, -1:]
    returns = value[:, :-1]
    bootstrap = value[:, 1:]
    for _ in range(min(steps, horizon)):
        returns = torch.addcmul(arriving_reward, arriving_discount, bootstrap)
        bootstrap = torch.cat((returns[:, 1:], last), dim=1)
    return returns


class NStep:
    """A ``ReturnComputer`` that bootstraps after ``steps`` rewards, or at the horizon where fewer are left."""

    def __init__(self, *, steps: int) -> None:
        if steps < 1:
            raise ReverieError(f"The n-step return got steps={steps}; set a whole number of at least 1.")
        self._steps = steps

    def __call__(self, reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
        return n_step_return(reward, discount, value, steps=self._steps)
