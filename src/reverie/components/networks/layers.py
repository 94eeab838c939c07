"""Linear layers, block-diagonal layers and the plain network of linear, norm and activation."""

from __future__ import annotations

import itertools
import math
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.types import ReverieError, require

NORM_EPSILON = 1e-4
LAYER_NORM_EPSILON = 1e-3
_ALIGNED = 8
"""Numbers of 16 bits that a matrix unit is fed with at once."""

Norm = Literal["rms", "layer", "none"]
Activation = Literal["silu", "elu", "relu"]
Fan = Literal["in", "average"]
"""What the variance of initial weights is divided by: the number of inputs, or the mean of inputs and outputs."""

_ACTIVATIONS = {"silu": F.silu, "elu": F.elu, "relu": F.relu}


def truncated_normal_(weight: Tensor, *, fan_in: float, outscale: float = 1.0) -> Tensor:
    """Normal truncated at two deviations, rescaled to unit variance over ``fan_in`` inputs, times ``outscale``."""
    with torch.no_grad():
        nn.init.trunc_normal_(weight, mean=0.0, std=1.0, a=-2.0, b=2.0)
        return weight.mul_(outscale * 1.1368 * math.sqrt(1 / fan_in))


def fan_beside(norm: Norm) -> Fan:
    """DreamerV3 brought the RMS norm and weights by fan-in; the codes with other norms, or none, take the average."""
    return "in" if norm == "rms" else "average"


def linear(
    input_dim: int, output_dim: int, *, outscale: float = 1.0, has_bias: bool = True, fan: Fan = "in"
) -> nn.Linear:
    """A linear layer with bias 0; ``outscale`` 0 makes its first output exactly zero."""
    layer = nn.Linear(input_dim, output_dim, bias=has_bias)
    divisor = input_dim if fan == "in" else (input_dim + output_dim) / 2
    truncated_normal_(layer.weight, fan_in=divisor, outscale=outscale)
    if has_bias:
        nn.init.zeros_(layer.bias)
    return layer


def aligned(layer: nn.Linear, x: Tensor) -> Tensor:
    """``layer(x)``. Where it is compiled, the outputs are filled up to a multiple of eight: else kernels are slow."""
    missing = -layer.out_features % _ALIGNED
    if not (missing and torch.compiler.is_compiling()):
        return layer(x)
    bias = None if layer.bias is None else F.pad(layer.bias, (0, missing))
    return F.linear(x, F.pad(layer.weight, (0, 0, 0, missing)), bias)[..., : layer.out_features]


class BlockLinear(nn.Module):
    """``blocks`` independent linear layers side by side: [..., blocks, in / blocks] -> [..., blocks, out / blocks]."""

    def __init__(self, input_dim: int, output_dim: int, *, blocks: int) -> None:
        super().__init__()
        if input_dim % blocks or output_dim % blocks:
            raise ReverieError(f"{input_dim} inputs and {output_dim} outputs must be multiples of {blocks} blocks.")
        self.weight = nn.Parameter(torch.empty(blocks, input_dim // blocks, output_dim // blocks))
        self.bias = nn.Parameter(torch.zeros(output_dim))
        # The fan-in is the total input size, as in the reference: sqrt(blocks) smaller than one block's own.
        truncated_normal_(self.weight, fan_in=input_dim)

    def forward(self, x_NGI: Tensor) -> Tensor:
        blocks, _, size = self.weight.shape
        bias_G1O, x_GNI = self.bias.view(blocks, 1, size), x_NGI.transpose(0, 1)
        if torch.compiler.is_compiling():  # then adding is free, where baddbmm would first write the bias out
            y_GNO = torch.bmm(x_GNI, self.weight)
            return (y_GNO + bias_G1O.to(y_GNO.dtype)).transpose(0, 1)
        return torch.baddbmm(bias_G1O, x_GNI, self.weight).transpose(0, 1)


class NormSilu(nn.Module):
    """SiLU(x / sqrt(mean(x^2) + 1e-4) * scale) over the last axis: a norm without shift, then the activation."""

    is_known_to_kernels: ClassVar[bool] = True
    """Code that computes a norm together with its neighbours computes this one; False in a form that differs."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            return _NormSilu.apply(x, self.scale)
        return F.silu(F.rms_norm(x.float(), self.scale.shape, self.scale, NORM_EPSILON)).to(x.dtype)


class _NormSilu(torch.autograd.Function):
    """Both in one node of the graph: a small model on a CPU spends its time on the number of operations."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor) -> Tensor:
        inverse = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square_()
        inverse = inverse.div_(x.shape[-1]).add_(NORM_EPSILON).rsqrt_()
        normed = x * inverse
        scaled = normed * scale
        ctx.save_for_backward(normed, inverse, scaled, scale)
        return F.silu(scaled).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, Tensor]:
        (grad,) = grad_outputs
        normed, inverse, scaled, scale = ctx.saved_tensors
        grad_scaled = torch.ops.aten.silu_backward(grad.to(scaled.dtype), scaled)
        grad_scale = (grad_scaled * normed).flatten(0, -2).sum(0)
        grad_normed = grad_scaled * scale
        along = (grad_normed * normed).mean(-1, keepdim=True)
        return torch.addcmul(grad_normed, normed, along, value=-1).mul_(inverse).to(grad.dtype), grad_scale


class NormActivation(nn.Module):
    """A layer norm over the last axis, with scale and shift, or none; then the activation. Both in float32."""

    def __init__(self, dim: int, *, norm: Norm, activation: Activation) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=LAYER_NORM_EPSILON) if norm == "layer" else None
        self._activation = _ACTIVATIONS[activation]

    def forward(self, x: Tensor) -> Tensor:
        normed = x.float() if self.norm is None else self.norm(x.float())
        return self._activation(normed).to(x.dtype)


def norm_activation(dim: int, *, norm: Norm, activation: Activation) -> NormSilu | NormActivation:
    if norm != "rms":
        return NormActivation(dim, norm=norm, activation=activation)
    if activation != "silu":
        raise ReverieError(f"the norm rms comes with the activation silu, not with {activation}: use layer or none.")
    return NormSilu(dim)


class Mlp(nn.Module):
    """``layers`` times linear, norm, activation. A layer norm has a shift, so the linear in front of it has no bias."""

    def __init__(
        self, input_dim: int, *, layers: int, units: int, norm: Norm = "rms", activation: Activation = "silu"
    ) -> None:
        super().__init__()
        require("layers of a network", layers, at_least=1)
        sizes = [input_dim] + [units] * layers
        self.linears = nn.ModuleList(
            [linear(a, b, has_bias=norm != "layer", fan=fan_beside(norm)) for a, b in itertools.pairwise(sizes)]
        )
        self.norms = nn.ModuleList([norm_activation(units, norm=norm, activation=activation) for _ in range(layers)])
        self.output_dim = sizes[-1]

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.linears, self.norms, strict=True):
            x = norm(layer(x))
        return x
