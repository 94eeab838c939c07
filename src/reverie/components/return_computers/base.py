"""What every return computer promises, and the one recursion that they share."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor


@runtime_checkable
class ReturnComputer(Protocol):
    """Turns H+1 arrivals into H returns.

    All inputs are [N, H+1] and indexed at the *arrival* state: ``reward[:, t]`` and ``discount[:, t]`` came with state
    t, ``value[:, t]`` judges it. ``discount`` is the probability to continue times gamma, already multiplied. Index 0
    of ``reward`` and ``discount`` belongs to the step that led to the start and is not used. The result [N, H] holds
    the return of the states 0 to H-1. Gradients flow through all inputs; who wants none detaches them.
    """

    def __call__(self, reward: Tensor, discount: Tensor, value: Tensor) -> Tensor: ...


def backward_recursion(addend: Tensor, factor: Tensor, last: Tensor) -> Tensor:
    """R_t = addend_{t+1} + factor_{t+1} * R_{t+1} with R_H = ``last`` [N]; [N, H+1] in, [N, H] out, one op per step."""
    assert addend.shape == factor.shape, f"addend {tuple(addend.shape)} and factor {tuple(factor.shape)} must agree"
    assert addend.shape[1] >= 2, "a return needs at least one step"
    addends, factors = addend.unbind(1), factor.unbind(1)
    returns = [last]
    for arrival in range(len(addends) - 1, 0, -1):
        returns.append(torch.addcmul(addends[arrival], factors[arrival], returns[-1]))
    return torch.stack(returns[:0:-1], dim=1)
