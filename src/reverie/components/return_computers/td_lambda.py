"""TD(lambda) returns: of imagined trajectories (one lambda) and of replayed ones (a trace per step)."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.components.return_computers.base import backward_recursion
from reverie.types import ReverieError


def lambda_return(reward: Tensor, discount: Tensor, value: Tensor, *, lambda_: float) -> Tensor:
    """R_t = r_{t+1} + c_{t+1} * ((1 - lambda) * v_{t+1} + lambda * R_{t+1}), R_H = v_H.

    Shapes and alignment as in ``ReturnComputer``.
    """
    assert reward.shape == discount.shape == value.shape, "reward, discount and value must have one shape [N, H+1]"
    addend = torch.addcmul(reward, discount, value, value=1 - lambda_)
    return backward_recursion(addend, discount * lambda_, value[:, -1])


def replay_lambda_return(reward: Tensor, live: Tensor, continues: Tensor, boot: Tensor) -> Tensor:
    """R_t = r_{t+1} + live_{t+1} * ((1 - cont_{t+1}) * boot_{t+1} + cont_{t+1} * R_{t+1}), R_{T-1} = boot_{T-1}.

    Inputs are [B, T] floats indexed at the arrival state: ``live`` is gamma, or 0 where the episode terminated;
    ``continues`` is lambda, or 0 where the next row belongs to another episode, so that no return leaks across the
    border; ``boot`` is a value estimate of each row. The result is [B, T-1].
    """
    assert reward.shape == live.shape == continues.shape == boot.shape, "all four inputs must have one shape [B, T]"
    factor = live * continues
    addend = torch.addcmul(reward, live - factor, boot)
    return backward_recursion(addend, factor, boot[:, -1])


class TdLambda:
    """A ``ReturnComputer`` that mixes all n-step returns; ``lambda_`` 0 trusts each value, 1 only the last one."""

    def __init__(self, *, lambda_: float = 0.95) -> None:
        if not 0.0 <= lambda_ <= 1.0:
            raise ReverieError(f"The TD(lambda) return got lambda_={lambda_}; set a number from 0 to 1.")
        self._lambda = lambda_

    def __call__(self, reward: Tensor, discount: Tensor, value: Tensor) -> Tensor:
        return lambda_return(reward, discount, value, lambda_=self._lambda)
