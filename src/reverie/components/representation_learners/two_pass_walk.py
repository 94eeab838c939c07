"""Any model's walk along a sequence, in two passes: states one after the other, then all weights' gradients at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial

import torch
from torch import Generator, Tensor

from reverie.components.networks.deferred import deferred
from reverie.components.networks.frozen import frozen
from reverie.components.networks.lowered import LoweredCopy
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.state_space_model import StateSpaceModel, StepInputs
from reverie.runtime.compilation import defers_gradients
from reverie.runtime.precision import Precision

Step = tuple[tuple[Tensor, ...], tuple[Tensor, ...]]
"""The state that a step began with, and what it gave: its gradients go from one to the other."""


class TwoPassWalk:
    """``model.observe`` for training: the same values, and the same gradients but for rounding.

    Made in this way where steps are compiled, `runtime.walk` asks for something else than autograd, and the model is
    nothing but its steps.
    """

    def __init__(self, model: StateSpaceModel, *, precision: Precision) -> None:
        self._model, self._is_lowered = model, precision.is_lowered

    @cached_property
    def _copy(self) -> LoweredCopy[StateSpaceModel]:
        """Every step uses the same weights: in lowered precision they are converted once for all steps."""
        return LoweredCopy(self._model)

    def observe(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, rng: Generator | None
    ) -> tuple[Latent, Tensor]:
        is_mine = defers_gradients() and torch.is_grad_enabled() and self._model.is_made_of_steps
        return (self.walk if is_mine else self._model.observe)(carry, tokens_BTD, action_BTA, is_first_BT, rng)

    def walk(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, rng: Generator | None
    ) -> tuple[Latent, Tensor]:
        given = self._model.sequences(carry, tokens_BTD, action_BTA, is_first_BT, rng)
        steps = self._first_pass(carry, given)
        values = [torch.stack(one, 1).detach() for one in zip(*(found for _, found in steps), strict=True)]
        deter_BTD, stoch_BTSC = (
            torch.cat([first.unsqueeze(1), later[:, :-1]], 1)
            for first, later in zip((carry.deter, carry.stoch), values[:2], strict=True)
        )
        found = self._model.observed(deter_BTD.flatten(0, 1), stoch_BTSC.flatten(0, 1), *given.at_once())
        at_once = [one.unflatten(0, is_first_BT.shape) for one in found]
        deter, stoch, posterior = deferred(values, at_once, partial(_along, steps))
        return Latent(deter=deter, stoch=stoch), posterior

    def _first_pass(self, carry: Latent, given: StepInputs) -> list[Step]:
        """Each step begins with a state that is cut off from the one before: how they hang together is `_along`'s."""
        model = self._model
        if self._is_lowered:
            self._copy.refresh()
            model = self._copy.network
        deter, stoch = carry.deter, carry.stoch
        steps: list[Step] = []
        with frozen([model]):
            for inputs in given.detached().by_time():
                begin = deter.detach().requires_grad_(), stoch.detach().requires_grad_()
                deter, stoch, posterior = model.observed(*begin, *inputs)
                steps.append((begin, (deter, stoch, posterior)))
        return steps


def _along(steps: Sequence[Step], *to_values: Tensor) -> tuple[Tensor, ...]:
    """From what reaches deter, stoch and posterior [B, T, ...] from outside to all that reaches them."""
    to_deter, to_stoch, to_posterior = (one.transpose(0, 1).contiguous() for one in to_values)
    # Steps get fresh tensors: compiled ones expect one layout.
    deter, stoch = to_deter[-1], to_stoch[-1]
    deters, stochs = [deter], [stoch]
    for step in reversed(range(1, len(steps))):
        begin, found = steps[step]
        reached = zip(found, (deter, stoch, to_posterior[step]), strict=True)
        heard, told = zip(*[pair for pair in reached if pair[0].requires_grad], strict=True)
        from_later = torch.autograd.grad(heard, begin, told, materialize_grads=True)
        deter, stoch = to_deter[step - 1] + from_later[0], to_stoch[step - 1] + from_later[1]
        deters.append(deter)
        stochs.append(stoch)
    return torch.stack(deters[::-1], 1), torch.stack(stochs[::-1], 1), to_values[2]
