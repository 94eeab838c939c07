"""One step of a recurrent network: what is read and the old state in, the new state out."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from reverie.components.networks.layers import LAYER_NORM_EPSILON, linear


class NormGru(nn.Module):
    """One linear layer on input and state together, a layer norm, then the gates (DreamerV2, and DreamerV3 of 2023).

    ``has_bias`` is that of the linear layer in front of the norm, which has a shift of its own.
    """

    def __init__(self, *, input_dim: int, deter: int, has_bias: bool = False) -> None:
        super().__init__()
        self.joint = linear(input_dim + deter, 3 * deter, has_bias=has_bias, fan="average")
        self.norm = nn.LayerNorm(3 * deter, eps=LAYER_NORM_EPSILON)

    def forward(self, x: Tensor, old: Tensor) -> Tensor:
        return gated(old.float(), self.norm(self.joint(torch.cat([x, old], -1)).float()))


class PlainGru(nn.Module):
    """The GRU of DreamerV1: no norm; the reset gate multiplies what comes from the state *after* its matrix product.

    This is what `GRUCell` of TF2 Keras does by default (`reset_after`), with a bias on either side, and torch's too.
    """

    def __init__(self, *, input_dim: int, deter: int) -> None:
        super().__init__()
        self.from_input = linear(input_dim, 3 * deter, fan="average")
        self.from_state = linear(deter, 3 * deter)
        for gate in self.from_state.weight.detach().chunk(3):
            nn.init.orthogonal_(gate)

    def forward(self, x: Tensor, old: Tensor) -> Tensor:
        reset, update, candidate = self.from_input(x).float().chunk(3, -1)
        old_reset, old_update, old_candidate = self.from_state(old).float().chunk(3, -1)
        candidate = torch.tanh(candidate + (reset + old_reset).sigmoid() * old_candidate)
        return torch.lerp(candidate, old.float(), (update + old_update).sigmoid())


def gated(old: Tensor, gates: Tensor) -> Tensor:
    """``gates``: reset, candidate and update side by side. The reset gate multiplies the candidate, not the state.

    Shifted by -1, the update gate lets little through at first: a fresh network remembers.
    """
    reset, candidate, update = gates.chunk(3, -1)
    candidate = torch.tanh(reset.sigmoid() * candidate)
    return torch.lerp(old, candidate, (update - 1).sigmoid())
