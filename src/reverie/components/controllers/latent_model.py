"""What a planner asks about: where actions lead, what they pay on the way, and what is left at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from reverie.components.controllers.policy_prior import PolicyPrior
from reverie.components.controllers.q_ensemble import QEnsemble
from reverie.components.networks.latent_encoder import Discount, LatentEncoder
from reverie.components.networks.latent_heads import LatentDynamics, RewardHead, TerminationHead


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentModel:
    dynamics: LatentDynamics
    reward_head: RewardHead
    termination_head: TerminationHead
    prior: PolicyPrior
    critic: QEnsemble
    discount: Discount
    """Of the next step; of each task, or of each of N environments, where they differ."""
    updates: Tensor
    """How many it has learned from."""
    mask: Tensor | None = None
    """[N, A]: 0 for the parts of an action that nobody reads."""
    counted: Tensor | None = None
    """[H]: which steps of a plan count, where not all of them do."""

    def about(self, encoder: LatentEncoder, obs: Mapping[str, Tensor]) -> LatentModel:
        """The same for N environments that show ``obs``, each of which may play a task of its own."""
        return replace(self, mask=encoder.action_mask(obs), discount=encoder.discount(self.discount, obs))

    def for_plans(self, counted: Tensor | None) -> LatentModel:
        return replace(self, counted=counted)

    def played(self, actions_HNSA: Tensor) -> Tensor:
        """The actions, or what is believed of them, with zeros where nothing depends on them."""
        if self.mask is not None:
            actions_HNSA = actions_HNSA * self.mask.unsqueeze(1)
        return actions_HNSA if self.counted is None else actions_HNSA * self.counted.view(-1, 1, 1, 1)

    def drawn(self, latent: Tensor, noise: Tensor) -> Tensor:
        """Actions of the policy for latents [N, S, D]."""
        return self.prior(latent, noise, None if self.mask is None else self.mask.unsqueeze(1)).action

    def proposed(self, latent: Tensor, noise_HNPA: Tensor) -> Tensor:
        """Actions [H, N, P, A] of the policy, followed from latents [N, D]."""
        state = latent.unsqueeze(1).expand(-1, noise_HNPA.shape[2], -1)
        actions = []
        for step, noise in enumerate(noise_HNPA):
            if step:
                state = self.dynamics(state, actions[-1])
            actions.append(self.drawn(state, noise))
        return torch.stack(actions)

    def returns(self, latent: Tensor, actions_HNSA: Tensor, noise_NSA: Tensor, pair: Tensor) -> Tensor:
        """[N, S]: discounted rewards of the actions, and behind them the value that two members of the critic give to
        an action of the policy. Nothing comes after a predicted end.
        """
        state = latent.unsqueeze(1).expand(-1, actions_HNSA.shape[2], -1)
        gamma = self.discount.unsqueeze(1) if isinstance(self.discount, Tensor) else self.discount
        total, discount, live = 0.0, 1.0, None
        for step, action in enumerate(actions_HNSA):
            reward, before = self.reward_head(state, action).mean(), state
            state, further = self.dynamics(state, action), discount * gamma
            if self.counted is not None:  # a shorter plan is worth what it is worth at its own end
                counts = self.counted[step]
                reward, state = torch.where(counts, reward, 0.0), torch.where(counts, state, before)
                further = torch.where(counts, further, discount)
            total = total + discount * (reward if live is None else reward * live)
            discount = further
            if self.termination_head.is_learned:
                goes_on = (self.termination_head(state).mean() <= 0.5).float()
                live = goes_on if live is None else live * goes_on
        value = self.critic.believed(self.critic(state, self.drawn(state, noise_NSA), members=pair).mean())
        return total + discount * (value if live is None else value * live)
