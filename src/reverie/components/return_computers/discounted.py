"""Monte Carlo return: the discounted sum of rewards up to the horizon."""

from __future__ import annotations

from torch import Tensor

from reverie.components.return_computers.base import backward_recursion


def discounted_return(reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
    """R_t = r_{t+1} + c_{t+1} * R_{t+1}, R_H = v_H. Shapes and alignment as in ``ReturnComputer``."""
    assert reward.shape == value.shape, f"reward {tuple(reward.shape)} and value {tuple(value.shape)} must agree"
    return backward_recursion(reward, discount, value[:, -1])


class Discounted:
    """Sums all rewards up to the horizon; only the last value is trusted. A ``ReturnComputer`` without settings."""

    def __call__(self, reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
        return discounted_return(reward, discount, value)
