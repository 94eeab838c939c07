"""The recurrent state-space model of DreamerV3: a deterministic path of gated blocks beside the random variables."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.layers import BlockLinear, Mlp, NormSilu, linear
from reverie.components.representation_learners.cells import gated
from reverie.components.representation_learners.latents import CategoricalLatents, Latent, LatentKind
from reverie.components.representation_learners.rssm_by_hand import chosen_steps, walked_by_hand
from reverie.components.representation_learners.rssm_tape import Inputs, Steps, Weights
from reverie.components.representation_learners.state_space_model import StateSpaceModel, bounded
from reverie.runtime.compilation import steps_are_compiled

Layer = TypeVar("Layer", bound=nn.Module)


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

        self._is_shallow = dynamics_layers == posterior_layers == 1

    def observe(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, rng: Generator | None
    ) -> tuple[Latent, Tensor]:
        is_by_hand = steps_are_compiled() and torch.is_grad_enabled() and self._has_gradients_by_hand()
        steps = chosen_steps() if is_by_hand else None
        if steps is None:
            return super().observe(carry, tokens_BTD, action_BTA, is_first_BT, rng)
        return self.walk(carry, tokens_BTD, action_BTA, is_first_BT, rng, steps=steps)

    @property
    def is_made_of_steps(self) -> bool:
        return type(self).observe is Rssm.observe and not self._has_gradients_by_hand()

    def _has_gradients_by_hand(self) -> bool:
        norms = (one for one in self.modules() if isinstance(one, NormSilu))
        is_known = self._is_shallow and isinstance(self._latents, CategoricalLatents)
        return is_known and all(one.is_known_to_kernels for one in norms)

    def walk(
        self,
        carry: Latent,
        tokens_BTD: Tensor,
        action_BTA: Tensor,
        is_first_BT: Tensor,
        rng: Generator | None,
        *,
        steps: Steps,
    ) -> tuple[Latent, Tensor]:
        """The same as ``observe`` in fewer and larger operations, for a device on which small ones are expensive.

        For latents of classes only. ``steps`` bring their own gradients.
        """
        assert isinstance(self._latents, CategoricalLatents)
        keep_BT1 = (~is_first_BT).unsqueeze(-1).to(carry.deter.dtype)
        first = _first(self.posterior_mlp.linears, nn.Linear)
        size, length = is_first_BT.shape
        action_BTGD = self._action_part(self.read_action(bounded(action_BTA) * keep_BT1))
        tokens_BTH = F.linear(tokens_BTD, first.weight[:, self._deter :], first.bias)
        noise_TB = self._latents.noise((length, size), carry.deter.device, rng)
        by_time = (part.transpose(0, 1) for part in (action_BTGD, tokens_BTH))
        inputs = Inputs(keep_BT1.transpose(0, 1), noise_TB, carry.deter, carry.stoch, *by_time)
        found = walked_by_hand(inputs, self._weights(), self._latents, steps)
        deter, stoch, posterior = (one.transpose(0, 1) for one in found)
        return Latent(deter=deter, stoch=stoch), posterior

    def _weights(self) -> Weights:
        deter, stoch = (_first(mlp.linears, nn.Linear) for mlp in (self.read_deter, self.read_stoch))
        read_scales: list[Tensor] = [_first(mlp.norms, NormSilu).scale for mlp in (self.read_deter, self.read_stoch)]
        return Weights(
            deter=deter.weight,
            deter_bias=deter.bias,
            stoch=stoch.weight,
            stoch_bias=stoch.bias,
            read_scales=torch.stack(read_scales),
            blocks=_first(self.dynamics, BlockLinear).weight[:, : -self.read_action.output_dim],
            block_scale=_first(self.dynamics_norms, NormSilu).scale,
            gates=self.gates.weight,
            gate_bias=self.gates.bias.view(self._blocks, -1),
            seen=_first(self.posterior_mlp.linears, nn.Linear).weight[:, : self._deter],
            seen_scale=_first(self.posterior_mlp.norms, NormSilu).scale,
            output=self.posterior_output.weight,
            output_bias=self.posterior_output.bias,
        )

    def _action_part(self, action_BTH: Tensor) -> Tensor:
        """What actions add to the blocks, with the blocks' bias: [B, T, blocks, D / blocks]."""
        layer, flat = _first(self.dynamics, BlockLinear), action_BTH.flatten(0, 1)
        weight = layer.weight[:, -flat.shape[-1] :]
        added = torch.baddbmm(layer.bias.view(self._blocks, 1, -1), flat.expand(self._blocks, -1, -1), weight)
        return added.transpose(0, 1).unflatten(0, action_BTH.shape[:2])

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


def _first(modules: nn.ModuleList, kind: type[Layer]) -> Layer:
    found = modules[0]
    assert isinstance(found, kind)
    return found
