"""What all recurrent state-space models share: the walk along a sequence, the KL, and what replay keeps of a latent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn

from reverie.components.representation_learners.latents import Latent, LatentKind, VariableDistribution
from reverie.runtime.compilation import compiled_step


class StepInputs(NamedTuple):
    """What a step reads beside the state."""

    tokens: Tensor
    action: Tensor
    """As ``_core`` reads it."""
    keep: Tensor
    """[..., 1]: 0 where an episode begins."""
    noise: Tensor | None
    start_deter: Tensor | None
    """[1, D]: where episodes begin, unless it is with zeros."""
    start_stoch: Tensor | None

    def by_time(self) -> Iterator[StepInputs]:
        """Of a sequence [B, T, ...] the inputs of each step."""
        noises = [None] * self.keep.shape[1] if self.noise is None else self.noise.unbind(1)
        parts = (one.unbind(1) for one in (self.tokens, self.action, self.keep))
        for tokens, action, keep, noise in zip(*parts, noises, strict=True):
            yield StepInputs(tokens, action, keep, noise, self.start_deter, self.start_stoch)

    def at_once(self) -> StepInputs:
        """Those of all steps as one batch, batch-major."""
        noise = None if self.noise is None else self.noise.flatten(0, 1)
        tokens, action, keep = (one.flatten(0, 1) for one in (self.tokens, self.action, self.keep))
        return StepInputs(tokens, action, keep, noise, self.start_deter, self.start_stoch)

    def detached(self) -> StepInputs:
        return StepInputs(
            self.tokens.detach(),
            self.action.detach(),
            self.keep,
            self.noise,
            None if self.start_deter is None else self.start_deter.detach(),
            None if self.start_stoch is None else self.start_stoch.detach(),
        )


class StateSpaceModel(nn.Module, ABC):
    """Filters observations into latents (``observe``) and predicts latents from actions alone (``imagine``).

    Actions arrive as one-hot or continuous vectors, and an action given at step t is the one that *led to* step t.
    ``posterior`` and ``prior`` are the numbers [..., variables, width] that describe the latents' distributions.
    """

    def __init__(self, *, deter: int, latents: LatentKind) -> None:
        super().__init__()
        self._deter, self._latents = deter, latents

    @property
    def is_made_of_steps(self) -> bool:
        """Whether ``observe`` is its steps one after the other and nothing else, so that they may be made otherwise."""
        return type(self).observe is StateSpaceModel.observe

    @abstractmethod
    def prior(self, deter: Tensor) -> Tensor:
        """The latent's distribution before its observation is seen."""

    @abstractmethod
    def _posterior(self, deter: Tensor, tokens: Tensor) -> Tensor: ...

    @abstractmethod
    def _action_input(self, action: Tensor) -> Tensor:
        """What ``_core`` reads of bounded actions, computed for a whole sequence at once."""

    @abstractmethod
    def _core(self, latent: Latent, action_input: Tensor) -> Tensor:
        """The next ``deter``."""

    def _parameters_of(self, output: Tensor) -> Tensor:
        """The last layer's numbers by variable."""
        return output.unflatten(-1, (self._latents.stoch, self._latents.parameter_width))

    def _learned_start(self) -> Latent | None:
        """Where an episode begins, with a leading axis of 1; None where it begins with zeros."""
        return None

    def dims(self) -> dict[str, int]:
        stoch_dim = self._latents.stoch * self._latents.width
        return {"deter_dim": self._deter, "stoch_dim": stoch_dim, "feature_dim": self._deter + stoch_dim}

    def initial(self, batch_size: int, device: torch.device) -> Latent:
        """Where episodes begin."""
        start = self._learned_start()
        if start is not None:
            return Latent(deter=start.deter.expand(batch_size, -1), stoch=start.stoch.expand(batch_size, -1, -1))
        return Latent(
            deter=torch.zeros(batch_size, self._deter, device=device),
            stoch=torch.zeros(batch_size, self._latents.stoch, self._latents.width, device=device),
        )

    def observe(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, rng: Generator | None
    ) -> tuple[Latent, Tensor]:
        """Latents and posterior of a sequence that begins right after ``carry``."""
        deter, stoch = carry.deter, carry.stoch
        deters, stochs, posteriors = [], [], []
        for step in self.sequences(carry, tokens_BTD, action_BTA, is_first_BT, rng).by_time():
            deter, stoch, posterior = self.observed(deter, stoch, *step)
            deters.append(deter)
            stochs.append(stoch)
            posteriors.append(posterior)
        return Latent(deter=torch.stack(deters, 1), stoch=torch.stack(stochs, 1)), torch.stack(posteriors, 1)

    def sequences(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, rng: Generator | None
    ) -> StepInputs:
        """[B, T, ...]: whatever does not depend on the recurrence, computed for all steps at once."""
        keep_BT1 = (~is_first_BT).unsqueeze(-1).to(carry.deter.dtype)
        size, length = is_first_BT.shape
        noise_TB = self._latents.noise((length, size), carry.deter.device, rng)
        start = self._learned_start()
        return StepInputs(
            tokens=tokens_BTD,
            action=self._action_input(bounded(action_BTA) * keep_BT1),
            keep=keep_BT1,
            noise=None if noise_TB is None else noise_TB.transpose(0, 1),
            start_deter=None if start is None else start.deter,
            start_stoch=None if start is None else start.stoch,
        )

    @compiled_step
    def observed(
        self,
        deter: Tensor,
        stoch: Tensor,
        tokens: Tensor,
        action_input: Tensor,
        keep_N1: Tensor,
        noise: Tensor | None,
        start_deter: Tensor | None,
        start_stoch: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``deter``, ``stoch`` and posterior after one step with an observation, which begins an episode where ``keep``
        is 0. A pure function of the arguments: it may be called twice for one step.
        """
        keep_N11 = keep_N1.unsqueeze(-1)
        deter, stoch = deter * keep_N1, stoch * keep_N11
        if start_deter is not None:
            deter = deter + start_deter * (1 - keep_N1)
        if start_stoch is not None:
            stoch = stoch + start_stoch * (1 - keep_N11)
        deter = self._core(Latent(deter=deter, stoch=stoch), action_input)
        posterior = self._posterior(deter, tokens)
        return deter, self._latents.sample(posterior, noise), posterior

    def imagine(self, latent: Latent, action: Tensor, rng: Generator | None) -> Latent:
        """One step without an observation."""
        return self.imagined(latent, action, self.noise(tuple(latent.deter.shape[:-1]), latent.deter.device, rng))

    def imagined(self, latent: Latent, action: Tensor, noise: Tensor | None) -> Latent:
        """``imagine`` with noise that was drawn before."""
        deter = self._core(latent, self._action_input(bounded(action)))
        return Latent(deter=deter, stoch=self._latents.sample(self.prior(deter), noise))

    def noise(self, shape: tuple[int, ...], device: torch.device, rng: Generator | None) -> Tensor | None:
        """What latents of this leading shape are drawn with; None, for the most likely ones, without ``rng``."""
        return self._latents.noise(shape, device, rng)

    def kl(self, posterior: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """(dynamics, representation): the prior moves towards the posterior, and the posterior towards the prior.

        Summed over the variables; free nats are the caller's.
        """
        to_prior, to_posterior = self._latents.kl(posterior, prior)
        return to_prior.sum(-1), to_posterior.sum(-1)

    def distribution(self, parameters: Tensor) -> VariableDistribution:
        return self._latents.distribution(parameters)

    def stored(self, latent: Latent) -> dict[str, Tensor]:
        """The compact form a buffer keeps: ``deter`` in bfloat16, and one byte or bfloat16 per variable."""
        return {"deter": latent.deter.to(torch.bfloat16), "stoch": self._latents.stored(latent.stoch)}

    def restored(self, stored: Mapping[str, Tensor]) -> Latent:
        return Latent(deter=stored["deter"].float(), stoch=self._latents.restored(stored["stoch"]))


def bounded(action: Tensor) -> Tensor:
    """Unclipped Gaussian samples are brought back to [-1, 1]."""
    return action / action.detach().abs().clamp(min=1.0)
