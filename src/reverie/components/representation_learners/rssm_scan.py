"""DreamerV3's walk along a sequence, arranged for a GPU. ``Rssm`` itself says what is computed; this says how.

At sixteen sequences a step is a chain of tiny kernels, so it has as few of them as possible: what is independent of the
recurrence is multiplied before the walk, weights are converted once, and gradients of weights are left out of the
backward walk. They are one product per weight, after it, of all that its layer read and all the gradients it received.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.components.networks.layers import NORM_EPSILON
from reverie.components.representation_learners.cells import gated
from reverie.components.representation_learners.latents import LatentKind
from reverie.runtime.compilation import compiled_step

Reads = list[Tensor]
Product = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class Layers:
    """The layers of a walk: their weights without gradients, and for each step zeros that catch gradients instead."""

    def __init__(self, length: int, size: int, dtype: torch.dtype) -> None:
        self._length, self._size, self._dtype = length, size, dtype
        self.weights: list[Tensor] = []
        self._catchers: list[tuple[Tensor, ...]] = []
        self._reads: list[Reads] = []

    def add(
        self, parameters: tuple[Tensor, ...], output: tuple[int, ...], product: Product, dtype: torch.dtype
    ) -> None:
        """A layer with outputs [size, *output] of ``dtype``; ``product`` gives its parameters' gradients."""
        reads: Reads = []
        shape = (self._length, self._size, *output)
        catcher = _Catcher.apply(reads, shape, dtype, product, *parameters)
        self._catchers.append(catcher.unbind(0))
        self._reads.append(reads)
        self.weights += [parameter.detach().to(dtype) for parameter in parameters]

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> None:
        parameters = (weight,) if bias is None else (weight, bias)
        self.add(parameters, (len(weight),), _linear_gradients if bias is not None else _weight_gradient, self._dtype)

    def blocks(self, weight: Tensor, bias: Tensor | None = None) -> None:
        parameters = (weight,) if bias is None else (weight, bias.view(len(weight), -1))
        product = _block_gradients if bias is not None else _block_gradient
        self.add(parameters, (len(weight), weight.shape[-1]), product, self._dtype)

    def scale(self, scale: Tensor) -> None:
        self.add((scale,), (len(scale),), _scale_gradient, torch.float32)

    def catchers(self, step: int) -> list[Tensor]:
        return [catcher[step] for catcher in self._catchers]

    def keep(self, reads: Reads) -> None:
        """What each layer read in one step."""
        for kept, read in zip(self._reads, reads, strict=True):
            kept.append(read)


class _Catcher(torch.autograd.Function):
    """Zeros to add to a layer's outputs: their gradient is the outputs', and gives the parameters' once at the end."""

    @staticmethod
    def forward(
        ctx: Any, reads: Reads, shape: tuple[int, ...], dtype: torch.dtype, product: Product, *parameters: Tensor
    ) -> Tensor:
        ctx.reads, ctx.product = reads, product
        return torch.zeros((), dtype=dtype, device=parameters[0].device).expand(shape)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = grad_outputs
        found = ctx.product(torch.stack(ctx.reads).flatten(0, 1), gradient.flatten(0, 1))
        ctx.reads.clear()
        return (None, None, None, None, *[one.float() for one in found])


def _weight_gradient(read_MI: Tensor, gradient_MO: Tensor) -> tuple[Tensor]:
    return (gradient_MO.T @ read_MI,)


def _linear_gradients(read_MI: Tensor, gradient_MO: Tensor) -> tuple[Tensor, Tensor]:
    return gradient_MO.T @ read_MI, gradient_MO.sum(0, dtype=torch.float32)


def _block_gradient(read_MGI: Tensor, gradient_MGO: Tensor) -> tuple[Tensor]:
    return (torch.bmm(read_MGI.permute(1, 2, 0), gradient_MGO.transpose(0, 1)),)


def _block_gradients(read_MGI: Tensor, gradient_MGO: Tensor) -> tuple[Tensor, Tensor]:
    return *_block_gradient(read_MGI, gradient_MGO), gradient_MGO.sum(0, dtype=torch.float32)


def _scale_gradient(read_MD: Tensor, gradient_MD: Tensor) -> tuple[Tensor]:
    return ((read_MD * gradient_MD).sum(0),)


@compiled_step
def walked(
    deter: Tensor,
    stoch: Tensor,
    keep_N1: Tensor,
    action_NGD: Tensor,
    tokens_NH: Tensor,
    noise: Tensor | None,
    latents: LatentKind,
    layers: list[Tensor],
    catchers: list[Tensor],
) -> tuple[Tensor, Tensor, Tensor, Reads]:
    """One step: the next ``deter`` and ``stoch``, the posterior, and what each layer read."""
    (deter_weight, deter_bias, deter_scale, stoch_weight, stoch_bias, stoch_scale, blocks, block_scale) = layers[:8]
    (gates, gate_bias, posterior_weight, posterior_scale, output_weight, output_bias) = layers[8:]
    dtype, groups = deter_weight.dtype, len(blocks)
    old = deter * keep_N1  # rows whose keep is 0 begin an episode
    read_deter, read_stoch = old.to(dtype), (stoch.flatten(-2) * keep_N1).to(dtype)
    one, one_normed = _normed(F.linear(read_deter, deter_weight, deter_bias) + catchers[0], deter_scale, catchers[1])
    two, two_normed = _normed(F.linear(read_stoch, stoch_weight, stoch_bias) + catchers[2], stoch_scale, catchers[3])
    shared = torch.cat([one, two], -1).unsqueeze(-2).expand(-1, groups, -1)
    x_NGI = torch.cat([read_deter.unflatten(-1, (groups, -1)), shared], -1)
    y_NGD = torch.bmm(x_NGI.transpose(0, 1), blocks).transpose(0, 1) + action_NGD + catchers[4]
    hidden, block_normed = _normed(y_NGD.flatten(-2), block_scale, catchers[5])
    hidden_NGD = hidden.unflatten(-1, (groups, -1))
    y_NGD = torch.baddbmm(gate_bias.unsqueeze(1), hidden_NGD.transpose(0, 1), gates).transpose(0, 1) + catchers[6]
    new = gated(old.unflatten(-1, (groups, -1)), y_NGD.float()).flatten(-2)
    read_new = new.to(dtype)
    y_NH = F.linear(read_new, posterior_weight) + tokens_NH + catchers[7]
    seen, seen_normed = _normed(y_NH, posterior_scale, catchers[8])
    output = F.linear(seen, output_weight, output_bias) + catchers[9]
    posterior = output.unflatten(-1, (latents.stoch, latents.parameter_width))
    reads = [read_deter, one_normed, read_stoch, two_normed, x_NGI, block_normed, hidden_NGD]
    reads += [read_new, seen_normed, seen]
    return new, latents.sample(posterior, noise), posterior, [read.detach() for read in reads]


def _normed(x: Tensor, scale: Tensor, catcher: Tensor) -> tuple[Tensor, Tensor]:
    """As ``NormSilu``, and what its scale multiplied."""
    wide = x.float()
    normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + NORM_EPSILON)
    return F.silu(normed * scale + catcher).to(x.dtype), normed
