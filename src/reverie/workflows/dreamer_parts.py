"""The parts of Dreamer's update, for measuring."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from reverie.components.representation_learners.latents import Latent
from reverie.runtime.precision import Precision
from reverie.workflows.dreamer_records import Dreamed, Learned
from reverie.workflows.update_parts import Differentiated, Part

Losses = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True, slots=True)
class DreamerSteps:
    """One update on one batch: each step as a function of what the earlier ones give."""

    encode: Callable[[], Tensor]
    observe: Callable[[Tensor], tuple[Latent, Tensor]]
    model_losses: Callable[[Latent, Tensor], Losses]
    dream: Callable[[Latent], Dreamed]
    behaviour_losses: Callable[[Dreamed, Latent], Losses]
    move: Part
    """From gradients to new weights."""

    def parts(
        self, learned: Learned, *, parameters: Sequence[Tensor], precision: Precision, dreams_with_graph: bool
    ) -> dict[str, Part]:
        """Where the actor learns through its dreams they have one backward pass: ``actor_critic`` then dreams too."""
        part = partial(Differentiated, parameters=parameters, precision=precision)
        # A graph that is kept alive binds its parameters to the stream that it was made on, and no other may record.
        tokens, posterior = learned.modelled.tokens.detach(), learned.modelled.posterior.detach()
        latents = learned.modelled.latents.detach()
        deter, stoch = latents.deter, latents.stoch
        behaviour = self._dreamed_losses if dreams_with_graph else partial(self._losses_of, learned.dreamed)
        dreams = {} if dreams_with_graph else {"imagination": part(function=lambda: [self.dream(latents).feature])}
        return {
            "encoder": part(function=lambda: [self.encode()]),
            "observe": part(function=self._observed, reads=[tokens]),
            "model_losses": part(function=self._modelled_losses, reads=[deter, stoch, posterior]),
            **dreams,
            "actor_critic": part(function=behaviour, reads=[deter, stoch]),
            "optimizer": self.move,
        }

    def _observed(self, tokens: Tensor) -> list[Tensor]:
        latents, posterior = self.observe(tokens)
        return [latents.deter, latents.stoch, posterior]

    def _modelled_losses(self, deter: Tensor, stoch: Tensor, posterior: Tensor) -> list[Tensor]:
        return list(self.model_losses(Latent(deter=deter, stoch=stoch), posterior).values())

    def _losses_of(self, dreamed: Dreamed, deter: Tensor, stoch: Tensor) -> list[Tensor]:
        return list(self.behaviour_losses(dreamed, Latent(deter=deter, stoch=stoch)).values())

    def _dreamed_losses(self, deter: Tensor, stoch: Tensor) -> list[Tensor]:
        return self._losses_of(self.dream(Latent(deter=deter, stoch=stoch)), deter, stoch)
