"""What one update of Dreamer computes on its way to the losses."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from reverie.components.controllers.credit import Credit
from reverie.components.representation_learners.latents import Latent
from reverie.types import Metrics


@dataclass(kw_only=True, slots=True)
class Modelled:
    """What the world model makes of the trained rows, all [B, T, ...]."""

    tokens: Tensor
    latents: Latent
    posterior: Tensor
    prior: Tensor
    reconstruction: dict[str, Tensor]
    """The loss of each decoded key."""
    losses: dict[str, Tensor]

    def surprise(self) -> Tensor:
        """[B]: how wrong the model was about what it saw and what that was worth."""
        return (self.losses["reconstruction"] + self.losses["reward"]).detach().mean(1)


@dataclass(kw_only=True, slots=True)
class Dreamed:
    """Imagined sequences [N, H + 1, ...]: index 0 is the replayed start, and every action is chosen at its state.

    Gradients to the actor, where there are any, are those of ``feature``.
    """

    feature: Tensor
    action: Tensor


@dataclass(kw_only=True, slots=True)
class Credited:
    """What is predicted along imagined sequences, at H + 1 states and without gradients, and the credit of actions."""

    reward: Tensor
    live: Tensor
    value: Tensor
    credit: Credit
    scale: Tensor


@dataclass(kw_only=True, slots=True)
class Judged:
    """What imagined sequences are worth: ``reward``, ``live`` and ``value`` at H + 1 states, the rest of the actions.

    All but ``entropy`` and the losses are without gradients.
    """

    reward: Tensor
    live: Tensor
    value: Tensor
    returns: Tensor
    scale: Tensor
    advantage: Tensor
    entropy: Tensor
    losses: dict[str, Tensor]

    @classmethod
    def of(cls, credited: Credited, policy_loss: Tensor, entropy: Tensor, value_loss: Tensor) -> Judged:
        credit, scale = credited.credit, credited.scale
        return cls(
            reward=credited.reward,
            live=credited.live,
            value=credited.value,
            returns=credit.returns.detach(),
            scale=scale,
            advantage=(credit.returns - credit.baseline).detach() / scale,
            entropy=entropy,
            losses={"policy": policy_loss, "value": value_loss},
        )

    def metrics(self) -> Metrics:
        return {
            "entropy": self.entropy.detach().mean(),
            "return_mean": self.returns.mean(),
            "value_mean": self.value.mean(),
            "reward_mean": self.reward.mean(),
            "advantage_size": self.advantage.abs().mean(),
        }


@dataclass(kw_only=True, slots=True)
class Learned:
    """All losses of one update by name, with their graphs, and what they were computed from."""

    modelled: Modelled
    dreamed: Dreamed
    judged: Judged
    replay_returns: Tensor | None
    """Of all but the last row; None where no loss needs them."""
    losses: dict[str, Tensor]
