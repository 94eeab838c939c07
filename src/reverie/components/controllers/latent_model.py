"""What a planner asks about: where actions lead, what they pay on the way, and what is left at the end."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.components.controllers.policy_prior import PolicyPrior
from reverie.components.controllers.q_ensemble import QEnsemble
from reverie.components.networks.latent_heads import LatentDynamics, RewardHead, TerminationHead


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentModel:
    dynamics: LatentDynamics
    reward_head: RewardHead
    termination_head: TerminationHead
    prior: PolicyPrior
    critic: QEnsemble
    discount: float

    def proposed(self, latent: Tensor, noise_HNPA: Tensor) -> Tensor:
        """Actions [H, N, P, A] of the policy, followed from latents [N, D]."""
        state = latent.unsqueeze(1).expand(-1, noise_HNPA.shape[2], -1)
        actions = []
        for step, noise in enumerate(noise_HNPA):
            if step:
                state = self.dynamics(state, actions[-1])
            actions.append(self.prior(state, noise).action)
        return torch.stack(actions)

    def returns(self, latent: Tensor, actions_HNSA: Tensor, noise_NSA: Tensor, pair: Tensor) -> Tensor:
        """[N, S]: discounted rewards of the actions, and behind them the mean value that two members of the critic
        give to an action of the policy. Nothing comes after a predicted end.
        """
        state = latent.unsqueeze(1).expand(-1, actions_HNSA.shape[2], -1)
        total, discount, live = 0.0, 1.0, None
        for action in actions_HNSA:
            reward = self.reward_head(state, action).mean()
            state = self.dynamics(state, action)
            total = total + discount * (reward if live is None else reward * live)
            discount *= self.discount
            if self.termination_head.is_learned:
                goes_on = (self.termination_head(state).mean() <= 0.5).float()
                live = goes_on if live is None else live * goes_on
        action = self.prior(state, noise_NSA).action
        value = self.critic(state, action, members=pair).mean().mean(0)
        return total + discount * (value if live is None else value * live)
