"""Model predictive path integral control: draw plans, keep the best, draw around them again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Generator, Tensor

from reverie.components.controllers.action_search import ActionSearch, Belief
from reverie.components.controllers.latent_model import LatentModel
from reverie.components.controllers.schedules import LinearSchedule
from reverie.runtime.compilation import compiled_step
from reverie.types import ReverieError, require

_MANY_ACTIONS = 20
"""Dimensions of an action from which plans are improved ``more_iterations`` times more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanNoise:
    """All that one call draws. I iterations, H steps, N environments, S samples, P of them proposed by the policy."""

    proposed: Tensor
    """[H, N, P, ...]."""
    drawn: Tensor
    """[I, H, N, S - P, ...]."""
    last_action: Tensor
    """[I, N, S, ...]: of the policy's action at the end of each plan."""
    pairs: Tensor
    """[I, 2]: members of the critic."""
    choice: Tensor
    """[N, E]: exponential; minus its logarithm is Gumbel noise."""
    action: Tensor | None
    """[N, ...]; None in evaluations."""


class PlanStep(NamedTuple):
    """One iteration: what was tried [H, N, S, A], what it is worth [N, S], and the best of it, in order [N, E]."""

    actions: Tensor
    returns: Tensor
    elite_index: Tensor
    elite_returns: Tensor
    score: Tensor
    mean: Tensor
    std: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    action: Tensor
    """[N, A]."""
    mean: Tensor
    """[H, N, A]: where the next plan begins, moved on by one step."""
    chosen: Tensor
    """[N]: which elite."""
    begun: Belief
    """Before the first iteration."""
    steps: list[PlanStep]


class Mppi:
    """A planner for N environments at once, each with a plan of its own. ``search`` says how actions are drawn.

    With a ``horizon_schedule`` plans are shorter than ``horizon`` at first: further steps are drawn and count nothing.
    """

    def __init__(
        self,
        *,
        search: ActionSearch,
        horizon: int = 3,
        horizon_schedule: LinearSchedule | None = None,
        iterations: int = 6,
        more_iterations: int = 2,
        samples: int = 512,
        proposals: int = 24,
        elites: int = 64,
        temperature: float = 0.5,
    ) -> None:
        require("horizon of the planner", horizon, at_least=1)
        require("iterations of the planner", iterations, at_least=1)
        require("more_iterations of the planner", more_iterations, at_least=0)
        require("proposals of the planner", proposals, at_least=0)
        require("samples of the planner", samples, at_least=max(2, proposals))
        if not 1 <= elites <= samples:
            raise ReverieError(f"the planner's elites must be from 1 to its samples ({samples}), got {elites}.")
        self.horizon, self.search, self.temperature = horizon, search, temperature
        if horizon_schedule is not None:
            require("start of the horizon_schedule", horizon_schedule.start, at_least=1, at_most=horizon)
            require("end of the horizon_schedule", horizon_schedule.end, at_least=1, at_most=horizon)
        self.horizon_schedule = horizon_schedule
        self._iterations, self._more_iterations = iterations, more_iterations
        self.samples, self._proposals, self._elites = samples, proposals, elites

    def noise(self, num_envs: int, model: LatentModel, rng: Generator, *, is_greedy: bool) -> PlanNoise:
        """What a call for ``num_envs`` environments draws, all at once."""
        dim, steps, rest = model.prior.action_dim, self.horizon, self.samples - self._proposals
        count = self._iterations + (self._more_iterations if dim >= _MANY_ACTIONS else 0)
        choice = torch.empty(num_envs, self._elites, device=rng.device).exponential_(generator=rng)
        return PlanNoise(
            proposed=model.prior.noise((steps, num_envs, self._proposals), rng),
            drawn=self.search.noise((count, steps, num_envs, rest), dim, rng),
            last_action=model.prior.noise((count, num_envs, self.samples), rng),
            pairs=model.critic.pairs((count,), rng),
            choice=choice,
            action=None if is_greedy else self.search.noise((num_envs,), dim, rng),
        )

    def __call__(self, model: LatentModel, latent: Tensor, previous_mean: Tensor, noise: PlanNoise) -> Plan:
        """Plans for latents [N, D]. ``previous_mean`` [H, N, A] is that of the last plans, zero where there is none."""
        belief = self.search.begin(torch.cat([previous_mean[1:], torch.zeros_like(previous_mean[:1])]))
        begun, steps, model = belief, [], model.for_plans(self.counted(model.updates))
        proposed = _proposed(model, latent, noise.proposed) if noise.proposed.shape[2] else None
        for drawn, last_action, pair in zip(noise.drawn, noise.last_action, noise.pairs, strict=True):
            step = _improved(self, model, latent, proposed, belief, drawn, last_action, pair)
            belief = Belief(step.mean, step.std)
            steps.append(step)
        chosen, action = self._chosen(steps[-1], noise.choice)
        return Plan(
            action=self.search.final(belief, action, noise.action),
            mean=belief.mean,
            chosen=chosen,
            begun=begun,
            steps=steps,
        )

    def improved(
        self,
        model: LatentModel,
        latent: Tensor,
        proposed: Tensor | None,
        belief: Belief,
        drawn: Tensor,
        last_action: Tensor,
        pair: Tensor,
    ) -> PlanStep:
        """One iteration."""
        actions = self.search.drawn(belief, drawn)
        if proposed is not None:
            actions = torch.cat([proposed, actions], 2)
        actions = model.played(actions)
        returns = model.returns(latent, actions, last_action, pair).nan_to_num(0.0)
        elite_returns, index = returns.topk(min(self._elites, returns.shape[1]), dim=1)
        score = (self.temperature * (elite_returns - elite_returns[:, :1])).exp()
        score = score / score.sum(1, keepdim=True)
        learned = self.search.settled(belief, self.search.learned(actions_at(actions, index), score), model.updates)
        learned = Belief(*(model.played(one.unsqueeze(2)).squeeze(2) for one in learned))
        return PlanStep(actions, returns, index, elite_returns, score, learned.mean, learned.std)

    def counted(self, updates: Tensor) -> Tensor | None:
        """[H]: whether a step of a plan counts by now; None where all do."""
        if self.horizon_schedule is None:
            return None
        return torch.arange(self.horizon, device=updates.device) < self.horizon_schedule(updates).floor()

    def _chosen(self, last: PlanStep, choice: Tensor) -> tuple[Tensor, Tensor]:
        """Which elite is followed, drawn by its score, and its first action."""
        chosen = (last.score.log() - choice.log()).argmax(1)
        index = last.elite_index.gather(1, chosen.unsqueeze(1))
        return chosen, actions_at(last.actions[:1], index)[0, :, 0]


def actions_at(actions_HNSA: Tensor, index_NE: Tensor) -> Tensor:
    """Those of some plans [H, N, E, A]."""
    steps, _, _, dim = actions_HNSA.shape
    return actions_HNSA.gather(2, index_NE.unsqueeze(-1).expand(steps, -1, -1, dim))


@compiled_step
def _proposed(model: LatentModel, latent: Tensor, noise: Tensor) -> Tensor:
    return model.proposed(latent, noise)


_improved = compiled_step(Mppi.improved)
