"""What an agent that plans has in mind at some moments of an episode, and how a workflow shows it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from reverie.types import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Plans:
    """P plans at each of M moments, the best first, each H steps long."""

    row: Tensor
    """[M]: which row of the episode the agent stood at."""
    rank: Tensor
    """[P]: the place of a plan among all that were kept, from 0 for the best."""
    obs: dict[str, Tensor]
    """What they expect to see [M, P, H + 1, ...], beginning with the moment itself: pictures from 0 to 1, classes,
    numbers. Only the keys that the model predicts."""
    reward: Tensor
    """[M, P, H]: what they expect to be paid on arrival at the next rows, 0 behind a predicted end."""
    real_reward: Tensor
    """[T]: of the rows of the episode, in the form that is predicted."""
    worth: Tensor
    """[M, P]: what the planner chose them by: their rewards, discounted, and the value of what comes after them."""
    discount: float
    """What a reward one step later is worth to the algorithm."""

    def cpu(self) -> Plans:
        return Plans(
            row=self.row.cpu(),
            rank=self.rank.cpu(),
            obs={key: value.cpu() for key, value in self.obs.items()},
            reward=self.reward.cpu(),
            real_reward=self.real_reward.cpu(),
            worth=self.worth.cpu(),
            discount=self.discount,
        )


@runtime_checkable
class ShowsPlans(Protocol):
    """A workflow whose plans can be looked at. Evaluations then show them."""

    def plans(self, episode: Batch, *, moments: int, shown: int) -> Plans | None:
        """Plan as the agent does, at up to ``moments`` rows spread over the ``episode``, and show some of the plans.

        ``episode`` has one sequence with ``context_rows`` rows in front. No random stream of the run is drawn from and
        nothing is changed. None where the agent does not plan, or the episode is shorter than a plan.
        """
        ...
