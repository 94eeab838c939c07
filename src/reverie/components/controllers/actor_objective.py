"""What the actor makes larger: by the chance of good actions, by the way that leads through the model, or by both."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from reverie.components.controllers.credit import Credit
from reverie.components.networks.actions import ActionDistribution
from reverie.types import Space, require


@runtime_checkable
class ActorObjective(Protocol):
    """The gain [N, A] of imagined actions. Weights and the entropy bonus are the caller's."""

    needs_graph: ClassVar[bool]
    """Whether returns must be differentiable functions of the actions."""

    def __call__(self, policy: ActionDistribution, action: Tensor, credit: Credit, scale: Tensor, /) -> Tensor: ...


class Reinforce:
    """log pi(a) times the advantage (return - baseline) / scale."""

    needs_graph: ClassVar[bool] = False

    def __call__(self, policy: ActionDistribution, action: Tensor, credit: Credit, scale: Tensor) -> Tensor:
        advantage = (credit.returns - credit.baseline).detach() / scale
        return policy.log_prob(action.detach()) * advantage


class DynamicsGradient:
    """The return / scale itself, whose gradient reaches the actions through the model.

    With ``has_baseline`` the baseline is subtracted, and its gradient to earlier actions counts too.
    """

    needs_graph: ClassVar[bool] = True

    def __init__(self, *, has_baseline: bool = False) -> None:
        self._has_baseline = has_baseline

    def __call__(self, policy: ActionDistribution, action: Tensor, credit: Credit, scale: Tensor) -> Tensor:
        gain = credit.returns - credit.baseline if self._has_baseline else credit.returns
        return gain / scale


class MixedGradient:
    """``dynamics_share`` of the second and the rest of the first."""

    needs_graph: ClassVar[bool] = True

    def __init__(self, *, dynamics_share: float = 0.1, has_baseline: bool = False) -> None:
        require("dynamics_share of the objective", dynamics_share, at_least=0, at_most=1)
        self._share = dynamics_share
        self._reinforce, self._dynamics = Reinforce(), DynamicsGradient(has_baseline=has_baseline)

    def __call__(self, policy: ActionDistribution, action: Tensor, credit: Credit, scale: Tensor) -> Tensor:
        by_chance = self._reinforce(policy, action, credit, scale)
        return self._share * self._dynamics(policy, action, credit, scale) + (1 - self._share) * by_chance


class ObjectiveBySpace:
    """The one that fits the task's actions. A class, because a stored config may name nothing else."""

    def __new__(cls, *, space: Space, discrete: ActorObjective, continuous: ActorObjective) -> ActorObjective:
        return discrete if space.is_discrete else continuous
