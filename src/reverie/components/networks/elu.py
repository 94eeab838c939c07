"""The networks of the first TD-MPC: linear layers with ELU, orthogonal at first, and critics that begin with a norm."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.types import require


class EluMlp(nn.Sequential):
    """``layers`` times linear and ELU, then a linear layer. ``starts_at_zero`` makes its first outputs exactly zero."""

    def __init__(
        self, input_dim: int, output_dim: int, *, layers: int, units: int, starts_at_zero: bool = False
    ) -> None:
        require("layers of a network", layers, at_least=1)
        sizes = [input_dim] + [units] * layers
        hidden = [part for a, b in itertools.pairwise(sizes) for part in (_orthogonal_(nn.Linear(a, b)), nn.ELU())]
        last = _orthogonal_(nn.Linear(units, output_dim))
        super().__init__(*hidden, last)
        if starts_at_zero:
            nn.init.zeros_(last.weight)


class EluEnsemble(nn.Module):
    """``members`` networks side by side: linear, layer norm and tanh; ``layers`` - 1 times linear and ELU; linear.

    Their last layers are zero at first.
    """

    def __init__(self, input_dim: int, output_dim: int, *, members: int, layers: int, units: int) -> None:
        super().__init__()
        require("members of an ensemble", members, at_least=2)
        require("layers of a network", layers, at_least=1)
        self.members = members
        sizes = [input_dim, *[units] * layers, output_dim]
        self.weight = nn.ParameterList(_weights(members, a, b) for a, b in itertools.pairwise(sizes))
        self.bias = nn.ParameterList(torch.zeros(members, size) for size in sizes[1:])
        nn.init.zeros_(self.weight[-1])
        self.norm_weight = nn.Parameter(torch.ones(members, units))
        self.norm_bias = nn.Parameter(torch.zeros(members, units))

    def forward(
        self, x: Tensor, *, members: Tensor | None = None, is_frozen: bool = False, keep: Tensor | None = None
    ) -> Tensor:
        """[..., in] -> [members, ..., out]. There is no dropout to ``keep`` anything of."""
        assert keep is None, "drawn_dropout says that there is none"

        def used(parameter: Tensor) -> Tensor:
            parameter = parameter.detach() if is_frozen else parameter
            return parameter if members is None else parameter.index_select(0, members)

        count = self.members if members is None else len(members)
        y = x.flatten(0, -2).unsqueeze(0).expand(count, -1, -1)
        for index, (weight, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            if index > 1:
                y = F.elu(y)
            y = torch.bmm(y, used(weight).transpose(1, 2))
            y = y + used(bias).unsqueeze(1).to(y.dtype)
            if index == 0:
                scale, shift = used(self.norm_weight).unsqueeze(1), used(self.norm_bias).unsqueeze(1)
                y = torch.addcmul(shift, F.layer_norm(y.float(), y.shape[-1:]), scale).tanh()
        return y.unflatten(1, x.shape[:-1])

    def drawn_dropout(self, inputs: int, rng: torch.Generator, *, members: int) -> Tensor | None:
        return None


def _orthogonal_(layer: nn.Linear) -> nn.Linear:
    nn.init.orthogonal_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


def _weights(members: int, input_dim: int, output_dim: int) -> Tensor:
    weight = torch.zeros(members, output_dim, input_dim)
    for one in weight:
        nn.init.orthogonal_(one)
    return weight
