"""The plain network of TD-MPC2: linear, layer norm and Mish, and at the end either a linear layer or a SimNorm."""

from __future__ import annotations

import itertools
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.types import ReverieError, require

WEIGHT_STD = 0.02
"""Of every linear layer at first; its bias is 0."""
_LARGE = 20.0
"""From here on Mish is its argument in all digits of a float32."""


class SimNorm(nn.Module):
    """A softmax inside each group of ``dim`` neighbours: every group sums up to 1."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        require("simnorm_dim of a network", dim, at_least=1)
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        if x.device.type != "cpu" or torch.compiler.is_compiling():
            return x.unflatten(-1, (-1, self.dim)).softmax(-1).flatten(-2)
        # A processor sums up neighbours one by one, but rows with its vector units: ten times as fast.
        columns = x.flatten(0, -2).t().unflatten(0, (-1, self.dim)) if x.dim() > 1 else x.view(-1, self.dim, 1)
        return columns.softmax(1).flatten(0, 1).t().reshape(x.shape)


class Mish(nn.Module):
    """x * tanh(softplus(x))."""

    def forward(self, x: Tensor) -> Tensor:
        return mish(x)


def mish(x: Tensor) -> Tensor:
    if torch.is_grad_enabled() or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.mish(x)
    # The same with one exponential, in less than half the time: plans on a processor do little else.
    exponential = x.clamp(max=_LARGE).exp_()
    share = torch.addcmul(exponential + exponential, exponential, exponential)
    return (share * x).div_(share + 2)


class NormedLinear(nn.Linear):
    """Linear, layer norm, then Mish, or SimNorm where ``simnorm_dim`` is given."""

    def __init__(self, input_dim: int, output_dim: int, *, simnorm_dim: int | None = None) -> None:
        super().__init__(input_dim, output_dim)
        if simnorm_dim and output_dim % simnorm_dim:
            raise ReverieError(f"a SimNorm over groups of {simnorm_dim} does not divide {output_dim} numbers.")
        self.ln = nn.LayerNorm(output_dim)
        self.act = SimNorm(simnorm_dim) if simnorm_dim else Mish()
        plain_weights_(self)

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002, the name that torch gave it
        return self.act(self.ln(super().forward(input)))


class NormedMlp(nn.Sequential):
    """``layers`` times ``NormedLinear``; then a linear layer to ``output_dim``, or one with SimNorm.

    ``starts_at_zero`` makes the first outputs of a linear last layer exactly zero.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        layers: int,
        units: int,
        simnorm_dim: int | None = None,
        starts_at_zero: bool = False,
    ) -> None:
        require("layers of a network", layers, at_least=1)
        sizes = [input_dim] + [units] * layers
        hidden = [NormedLinear(a, b) for a, b in itertools.pairwise(sizes)]
        last = NormedLinear(units, output_dim, simnorm_dim=simnorm_dim) if simnorm_dim else nn.Linear(units, output_dim)
        super().__init__(*hidden, plain_weights_(last))
        if starts_at_zero:
            nn.init.zeros_(last.weight)


def plain_weights_(layer: nn.Linear) -> nn.Linear:
    nn.init.trunc_normal_(layer.weight, std=WEIGHT_STD)
    nn.init.zeros_(layer.bias)
    return layer


class NormedLinears(nn.Module):
    """The same layer for ``members`` networks side by side, as one product: [members, ..., in] -> [members, ..., out].

    Without ``has_norm`` it is linear only. ``starts_at_zero`` makes its first outputs exactly zero.
    """

    def __init__(
        self, members: int, input_dim: int, output_dim: int, *, has_norm: bool, starts_at_zero: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(members, output_dim, input_dim))
        self.bias = nn.Parameter(torch.zeros(members, output_dim))
        if not starts_at_zero:
            nn.init.trunc_normal_(self.weight, std=WEIGHT_STD)
        self.ln: nn.ParameterDict | None = None
        if has_norm:
            shape = (members, output_dim)
            self.ln = nn.ParameterDict({"weight": torch.ones(shape), "bias": torch.zeros(shape)})

    def forward(
        self, x_QNI: Tensor, *, members: Tensor | None = None, is_frozen: bool = False, keep_QNO: Tensor | None = None
    ) -> Tensor:
        """``members`` [k] computes those only; ``is_frozen`` has no gradient; ``keep`` is dropout before the norm."""

        def used(parameter: Tensor) -> Tensor:
            parameter = parameter.detach() if is_frozen else parameter
            return parameter if members is None else parameter.index_select(0, members)

        weight, bias = used(self.weight).transpose(1, 2), used(self.bias).unsqueeze(1)
        if torch.compiler.is_compiling():  # then adding is free, where baddbmm would first write the bias out
            y = torch.bmm(x_QNI, weight)
            y = y + bias.to(y.dtype)
        else:
            y = torch.baddbmm(bias, x_QNI, weight)
        y = y if keep_QNO is None else y * keep_QNO
        if self.ln is None:
            return y
        normed = F.layer_norm(y.float(), y.shape[-1:])
        return mish(torch.addcmul(used(self.ln["bias"]).unsqueeze(1), normed, used(self.ln["weight"]).unsqueeze(1)))


class Ensemble(Protocol):
    """``members`` networks that read the same input."""

    members: int

    def __call__(
        self, x: Tensor, /, *, members: Tensor | None = None, is_frozen: bool = False, keep: Tensor | None = None
    ) -> Tensor:
        """[..., in] -> [members, ..., out]. ``members`` asks those only; ``is_frozen`` leaves no gradient in the
        parameters; ``keep`` comes from ``drawn_dropout`` for as many inputs.
        """
        ...

    def drawn_dropout(self, inputs: int, rng: torch.Generator, *, members: int) -> Tensor | None:
        """What the first layer's outputs are multiplied with; None without dropout."""
        ...


class NormedEnsemble(nn.ModuleList):
    """``members`` networks like ``NormedMlp`` that read the same input, with dropout behind their first linear layer.

    Their last layers are zero at first.
    """

    def __init__(
        self, input_dim: int, output_dim: int, *, members: int, layers: int, units: int, dropout: float = 0.0
    ) -> None:
        require("members of an ensemble", members, at_least=2)
        require("layers of a network", layers, at_least=1)
        require("dropout of a network", dropout, at_least=0, at_most=0.99)
        sizes = [input_dim] + [units] * layers
        hidden = [NormedLinears(members, a, b, has_norm=True) for a, b in itertools.pairwise(sizes)]
        last = NormedLinears(members, units, output_dim, has_norm=False, starts_at_zero=True)
        super().__init__([*hidden, last])
        self.members, self._units, self._dropout = members, units, dropout

    def forward(
        self, x: Tensor, *, members: Tensor | None = None, is_frozen: bool = False, keep: Tensor | None = None
    ) -> Tensor:
        """[..., in] -> [members, ..., out]. ``keep`` comes from ``drawn_dropout`` for as many inputs, or for those of
        one entry of the first axis, and then holds for all of its entries.
        """
        count = self.members if members is None else len(members)
        y = x.flatten(0, -2).unsqueeze(0).expand(count, -1, -1)
        if keep is not None and keep.shape[1] != y.shape[1]:
            keep = keep.repeat(1, len(x), 1)
        for index, layer in enumerate(self):
            y = layer(y, members=members, is_frozen=is_frozen, keep_QNO=keep if index == 0 else None)
        return y.unflatten(1, x.shape[:-1])

    def drawn_dropout(self, inputs: int, rng: torch.Generator, *, members: int) -> Tensor | None:
        if not self._dropout:
            return None
        drawn = torch.rand(members, inputs, self._units, device=rng.device, generator=rng)
        return (drawn >= self._dropout).float() / (1 - self._dropout)
