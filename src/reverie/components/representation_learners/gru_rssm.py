"""The recurrent state-space model of DreamerV1, DreamerV2 and the 2023 form of DreamerV3, around one recurrent cell."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from reverie.components.networks.layers import Activation, Mlp, Norm, fan_beside, linear
from reverie.components.representation_learners.latents import Latent, LatentKind
from reverie.components.representation_learners.state_space_model import StateSpaceModel


class GruRssm(StateSpaceModel):
    """The random variables and the action go through one layer into the cell, whose state is ``deter``.

    ``cell`` is called with ``input_dim`` and ``deter`` and makes a module ``(input, old) -> new``. With
    ``has_learned_start`` episodes begin with a learned ``deter`` between -1 and 1 and the most likely variables there,
    through whose choice no gradient goes; else they begin with zeros.
    """

    def __init__(
        self,
        *,
        token_dim: int,
        action_dim: int,
        deter: int,
        hidden: int,
        latents: LatentKind,
        cell: Callable[..., nn.Module],
        norm: Norm = "none",
        activation: Activation = "elu",
        has_learned_start: bool = False,
    ) -> None:
        super().__init__(deter=deter, latents=latents)

        def layer(input_dim: int) -> Mlp:
            return Mlp(input_dim, layers=1, units=hidden, norm=norm, activation=activation)

        def output() -> nn.Linear:
            return linear(hidden, latents.stoch * latents.parameter_width, fan=fan_beside(norm))

        self.cell_input = layer(latents.stoch * latents.width + action_dim)
        self.cell = cell(input_dim=hidden, deter=deter)
        self.prior_mlp, self.prior_output = layer(deter), output()
        self.posterior_mlp, self.posterior_output = layer(deter + token_dim), output()
        self.start = nn.Parameter(torch.zeros(1, deter)) if has_learned_start else None

    def prior(self, deter: Tensor) -> Tensor:
        return self._parameters_of(self.prior_output(self.prior_mlp(deter)))

    def _posterior(self, deter: Tensor, tokens: Tensor) -> Tensor:
        return self._parameters_of(self.posterior_output(self.posterior_mlp(torch.cat([deter, tokens], -1))))

    def _action_input(self, action: Tensor) -> Tensor:
        return action

    def _core(self, latent: Latent, action_input: Tensor) -> Tensor:
        x = self.cell_input(torch.cat([latent.stoch_vector, action_input], -1))
        return self.cell(x, latent.deter)

    def _learned_start(self) -> Latent | None:
        if self.start is None:
            return None
        deter = torch.tanh(self.start)
        return Latent(deter=deter, stoch=self._latents.sample(self.prior(deter), None).detach())
