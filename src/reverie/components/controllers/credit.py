"""What imagined actions and states are worth: which return belongs to which action, and how much each step counts.

Two conventions, named after where the first reward of a return is found. Inputs are [N, H+1]: index 0 is the replayed
start, and ``reward`` and ``live`` (gamma, or 0 where the episode ends) are read at the state they are predicted from.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from reverie.components.return_computers.base import ReturnComputer


@dataclass(kw_only=True, slots=True)
class Credit:
    """Of the first A actions, each chosen at the state with its index, and of the states ``judged``."""

    returns: Tensor
    """[N, A]: what follows the action, with gradients where the inputs have them."""
    baseline: Tensor
    """[N, A]: the value of the state at which the action is chosen."""
    weight: Tensor
    """[N, A]: how much the action counts; no gradient."""
    target: Tensor
    """[N, H+1]: what the critic should say at the states ``judged``; no gradient."""
    judged: slice
    """The states whose value is learned."""
    value_weight: Tensor
    """How much each of them counts; no gradient."""


@runtime_checkable
class CreditRule(Protocol):
    counts_own_reward: ClassVar[bool]
    """Whether the value of a state counts the reward that came with it."""
    min_horizon: ClassVar[int]

    def __call__(
        self, reward: Tensor, live: Tensor, value: Tensor, *, start_live: Tensor, computer: ReturnComputer
    ) -> Credit:
        """``start_live`` [N] is gamma, or 0 where the start is known to end its episode."""
        ...


class ArrivalCredit:
    """DreamerV3: a value counts what comes after its state, R_t = r_{t+1} + c_{t+1} * (...).

    A step counts by the chance to get through its own state too; with ``has_true_start`` replay says that of the start.
    """

    counts_own_reward: ClassVar[bool] = False
    min_horizon: ClassVar[int] = 1

    def __init__(self, *, has_true_start: bool = False) -> None:
        self._has_true_start = has_true_start

    def __call__(
        self, reward: Tensor, live: Tensor, value: Tensor, *, start_live: Tensor, computer: ReturnComputer
    ) -> Credit:
        returns = computer(reward, live, value)
        chance = live.detach()
        if self._has_true_start:  # one or zero, without gamma: nothing has been waited for yet
            chance = torch.cat([start_live.sign().unsqueeze(1), chance[:, 1:]], 1)
        weight = chance.cumprod(1)[:, :-1]
        return Credit(
            returns=returns,
            baseline=value[:, :-1],
            weight=weight,
            target=torch.cat([returns, value[:, -1:]], 1).detach(),
            judged=slice(0, -1),
            value_weight=weight,
        )


class StateCredit:
    """DreamerV1 and V2: a value counts the reward of its own state, R_t = r_t + c_t * (...).

    An action is then credited with the return of the state that it leads to, and a step counts by the chance to get
    through the states before it. With ``has_true_start`` replay says whether the start ends its episode; without
    ``judges_start`` the start is left out altogether.
    """

    counts_own_reward: ClassVar[bool] = True
    min_horizon: ClassVar[int] = 2

    def __init__(self, *, judges_start: bool = True, has_true_start: bool = False) -> None:
        self._judges_start, self._has_true_start = judges_start, has_true_start

    def __call__(
        self, reward: Tensor, live: Tensor, value: Tensor, *, start_live: Tensor, computer: ReturnComputer
    ) -> Credit:
        if self._has_true_start:
            live = torch.cat([start_live.unsqueeze(1), live[:, 1:]], 1)
        # A computer reads at the arrival: shifted by one, the numbers of a state itself stand there.
        of_states = computer(_later(reward), _later(live), value)
        first = 0 if self._judges_start else 1
        before = live.detach()[:, first:-2]
        weight = torch.cat([torch.ones_like(value[:, :1]), before], 1).cumprod(1)
        return Credit(
            returns=of_states[:, 1:],
            baseline=value[:, :-2],
            weight=weight[:, : of_states.shape[1] - 1],
            target=torch.cat([of_states, value[:, -1:]], 1).detach(),
            judged=slice(first, -1),
            value_weight=weight,
        )


def _later(numbers: Tensor) -> Tensor:
    return torch.cat([numbers[:, :1], numbers[:, :-1]], 1)
