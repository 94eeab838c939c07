"""What a world model predicts while its eyes are closed, and how a workflow offers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

from reverie.types import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLoop:
    """What a model says about rows [B, T]; every tensor stands beside the row that it is about."""

    obs: dict[str, Tensor]
    """The keys that the model predicts, shaped as in the rows: pictures from 0 to 1, class indices, numbers."""
    reward: Tensor | None
    """None for a model that predicts none."""
    real_reward: Tensor
    """The rewards of the rows in the form that is predicted: an algorithm may squash or clip them."""
    live: Tensor | None
    """The probability that the episode does not end here by itself, without any discount in it; None as above."""
    discount: float
    """What a reward one step later is worth to the algorithm; the mean over rows of tasks that differ in it."""
    latent_error: Tensor | None = None
    """How far each latent is from that of the row's own observation, for algorithms that are trained on it."""
    why_blind: str | None = None
    """Where ``obs`` is empty: why, and what to do about it."""

    def cpu(self) -> OpenLoop:
        return OpenLoop(
            obs={key: value.cpu() for key, value in self.obs.items()},
            reward=None if self.reward is None else self.reward.cpu(),
            real_reward=self.real_reward.cpu(),
            live=None if self.live is None else self.live.cpu(),
            discount=self.discount,
            latent_error=None if self.latent_error is None else self.latent_error.cpu(),
            why_blind=self.why_blind,
        )


@runtime_checkable
class PredictsOpenLoop(Protocol):
    """A workflow that can be asked what it expects. Evaluations then measure and show it."""

    def open_loop(self, batch: Batch, *, is_context: Tensor) -> OpenLoop:
        """Follow the recorded actions: take in the observation where ``is_context`` [B, T], imagine it elsewhere.

        ``batch`` has ``context_rows`` rows before these T; a first row of an episode is always context. Nothing is
        drawn from a random stream and nothing is changed: the most likely latents are taken.
        """
        ...
