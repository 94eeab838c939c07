"""What all recurrent state-space models share: the walk along a sequence, the KL, and what replay keeps of a latent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Generator, Tensor, nn

from reverie.components.representation_learners.latents import Latent, LatentKind, VariableDistribution
from reverie.runtime.compilation import compiled_step


class StateSpaceModel(nn.Module, ABC):
    """Filters observations into latents (``observe``) and predicts latents from actions alone (``imagine``).

    Actions arrive as one-hot or continuous vectors, and an action given at step t is the one that *led to* step t.
    ``posterior`` and ``prior`` are the numbers [..., variables, width] that describe the latents' distributions.
    """

    def __init__(self, *, deter: int, latents: LatentKind) -> None:
        super().__init__()
        self._deter, self._latents = deter, latents

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
        keep_BT1 = (~is_first_BT).unsqueeze(-1).to(carry.deter.dtype)
        # Whatever does not depend on the recurrence is computed for all steps at once.
        action_BTD = self._action_input(bounded(action_BTA) * keep_BT1)
        size, length = is_first_BT.shape
        noise_TB = self._latents.noise((length, size), carry.deter.device, rng)
        noises = [None] * length if noise_TB is None else noise_TB.unbind(0)
        start = self._learned_start()
        begin = (None, None) if start is None else (start.deter, start.stoch)
        deter, stoch = carry.deter, carry.stoch
        deters, stochs, posteriors = [], [], []
        steps = zip(tokens_BTD.unbind(1), action_BTD.unbind(1), keep_BT1.unbind(1), noises, strict=True)
        for step in steps:
            deter, stoch, posterior = self._observed(deter, stoch, *step, *begin)
            deters.append(deter)
            stochs.append(stoch)
            posteriors.append(posterior)
        return Latent(deter=torch.stack(deters, 1), stoch=torch.stack(stochs, 1)), torch.stack(posteriors, 1)

    @compiled_step
    def _observed(
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
        """One step with an observation. Rows whose ``keep`` is 0 begin an episode."""
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
