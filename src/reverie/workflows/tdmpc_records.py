"""What one update of TD-MPC reads and draws, and what it computes on its way to the losses. All is time first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from reverie.types import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Transitions:
    """H transitions of B sequences. Reward and end at t belong to the step from obs[t] by action[t] to obs[t + 1]."""

    obs: dict[str, Tensor]
    """[H + 1, B, ...]."""
    action: Tensor
    """[H, B, A], as vectors."""
    reward: Tensor
    """[H, B]."""
    is_terminal: Tensor
    """[H, B], as numbers."""
    mask: Tensor | None = None
    """[B, A]: 0 for the parts of an action that the task of a sequence does not read."""
    weight: Tensor | None = None
    """[B]: what a sequence counts, where some are drawn more often than others."""

    @classmethod
    def of(
        cls,
        batch: Batch,
        vector: Callable[[Tensor], Tensor],
        action_mask: Callable[[Mapping[str, Tensor]], Tensor | None],
    ) -> Transitions:
        """Rows hold what arrived with their observation, which the transition before them led to. An episode, and so a
        sequence, plays one task.
        """
        mask = action_mask({key: value[:, 0] for key, value in batch.obs.items()})
        action = vector(batch.action[:, :-1]).transpose(0, 1)
        return cls(
            mask=mask,
            weight=batch.weight,
            obs={key: value.transpose(0, 1) for key, value in batch.obs.items()},
            action=action if mask is None else action * mask,
            reward=batch.reward[:, 1:].t(),
            is_terminal=batch.is_terminal[:, 1:].t().float(),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateNoise:
    """All that one update draws."""

    shift: dict[str, Tensor]
    """Of pictures [H + 1, B, 2]."""
    target_action: Tensor
    """[H, B, ...]."""
    target_pair: Tensor
    """[2]: members of the critic whose smaller value counts."""
    policy_action: Tensor
    """[H + 1, B, ...]."""
    policy_pair: Tensor
    """[2]: members whose mean the policy is raised by."""
    model_keep: Tensor | None
    """Dropout of the critic in the model's losses and in the policy's; None without dropout."""
    policy_keep: Tensor | None


@dataclass(kw_only=True, slots=True)
class Modelled:
    """What the model makes of transitions."""

    next_latents: Tensor
    """[H, B, D]: of what was seen, without gradients."""
    targets: Tensor
    """[H, B]: of the values."""
    latents: Tensor
    """[H + 1, B, D]: where the model thinks it went."""
    losses: dict[str, Tensor]
    """Single numbers."""
    surprise: Tensor
    """[B]: what rewards and values cost in each sequence."""
    end_logit: Tensor | None
    """[H, B]: of an end on arrival, where that is learned."""


@dataclass(kw_only=True, slots=True)
class Improved:
    """How the policy does on those latents."""

    loss: Tensor
    entropy: Tensor
    bonus: Tensor
    value: Tensor
    scale: Tensor
