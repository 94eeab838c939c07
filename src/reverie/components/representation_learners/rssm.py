"""The recurrent state-space model of DreamerV3: a deterministic path of gated blocks beside the random variables."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reverie.components.networks.layers import BlockLinear, Mlp, NormSilu, linear
from reverie.components.representation_learners.cells import gated
from reverie.components.representation_learners.latents import Latent, LatentKind
from reverie.components.representation_learners.state_space_model import StateSpaceModel


class Rssm(StateSpaceModel):
    """``deter`` is cut into ``blocks`` that gate themselves; every block reads the whole latent and the action."""

    def __init__(
        self,
        *,
        token_dim: int,
        action_dim: int,
        deter: int,
        hidden: int,
        latents: LatentKind,
        blocks: int = 8,
        dynamics_layers: int = 1,
        prior_layers: int = 2,
        posterior_layers: int = 1,
    ) -> None:
        super().__init__(deter=deter, latents=latents)
        self._blocks = blocks
        self.read_deter = Mlp(deter, layers=1, units=hidden)
        self.read_stoch = Mlp(latents.stoch * latents.width, layers=1, units=hidden)
        self.read_action = Mlp(action_dim, layers=1, units=hidden)
        inputs = [deter + blocks * 3 * hidden] + [deter] * (dynamics_layers - 1)
        self.dynamics = nn.ModuleList([BlockLinear(dim, deter, blocks=blocks) for dim in inputs])
        self.dynamics_norms = nn.ModuleList([NormSilu(deter) for _ in inputs])
        self.gates = BlockLinear(deter, 3 * deter, blocks=blocks)
        output_dim = latents.stoch * latents.parameter_width
        self.prior_mlp = Mlp(deter, layers=prior_layers, units=hidden)
        self.prior_output = linear(hidden, output_dim)
        self.posterior_mlp = Mlp(deter + token_dim, layers=posterior_layers, units=hidden)
        self.posterior_output = linear(hidden, output_dim)

    def prior(self, deter: Tensor) -> Tensor:
        return self._parameters_of(self.prior_output(self.prior_mlp(deter)))

    def _posterior(self, deter: Tensor, tokens: Tensor) -> Tensor:
        return self._parameters_of(self.posterior_output(self.posterior_mlp(torch.cat([deter, tokens], -1))))

    def _action_input(self, action: Tensor) -> Tensor:
        return self.read_action(action)

    def _core(self, latent: Latent, action_input: Tensor) -> Tensor:
        inputs = torch.cat([self.read_deter(latent.deter), self.read_stoch(latent.stoch_vector), action_input], -1)
        inputs_NGI = inputs.unsqueeze(-2).expand(-1, self._blocks, -1)
        old_NGD = latent.deter.unflatten(-1, (self._blocks, -1))
        x_NGI = torch.cat([old_NGD.to(inputs.dtype), inputs_NGI], -1)
        for layer, norm in zip(self.dynamics, self.dynamics_norms, strict=True):
            x_NGI = norm(layer(x_NGI).flatten(-2)).unflatten(-1, (self._blocks, -1))
        # Each block has its own three gates: the split is inside the block, not across the whole vector.
        return gated(old_NGD, self.gates(x_NGI).to(old_NGD.dtype)).flatten(-2)
