"""The first layer of an encoder of pictures in kernels of its own: convolution, pooling, norm and SiLU.

The same function as ``conv_then_halved`` of ``images.py`` and the ``NormSilu`` behind it. Two operations of torch, so
that the compiler takes them as they are into the graph that it makes of everything else. Triton is not everywhere
where torch is, and takes a second to load, so only a launch imports it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.runtime.convolutions import convolutions_have_kernels

_MOST_OUTPUTS, _MOST_TERMS = 256, 256
"""Channels of the result, and numbers in a patch: what fits into the registers of one program."""
_MOST_BYTES = 64 * 1024
"""Of the weights of one corner. A program keeps those of three at once, beside its patches."""


def can_be_fused(x_NHWC: Tensor, weight_OIKK: Tensor) -> bool:
    """On a Hopper GPU, for a picture that asks for no gradient and a layer that fits into its memory."""
    is_reachable = convolutions_have_kernels() and x_NHWC.is_cuda and not x_NHWC.requires_grad
    return is_reachable and _fits(weight_OIKK, _product_dtype(x_NHWC))


def _fits(weight_OIKK: Tensor, dtype: torch.dtype) -> bool:
    outputs, channels, size, _ = weight_OIKK.shape
    terms = (size + 1) ** 2 * channels
    has_room = _power_of_two(terms) * _power_of_two(outputs) * dtype.itemsize <= _MOST_BYTES
    return size % 2 == 1 and outputs <= _MOST_OUTPUTS and terms <= _MOST_TERMS and has_room


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _product_dtype(x: Tensor) -> torch.dtype:
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


def conv_halved_activated(x_NHWC: Tensor, weight_OIKK: Tensor, bias_O: Tensor, scale_O: Tensor) -> Tensor:
    """[N, H / 2, W / 2, O] in the type of products. Height and width are even; ``x_NHWC`` gets no gradient."""
    reach = weight_OIKK.shape[-1] // 2
    bordered = F.pad(x_NHWC.to(_product_dtype(x_NHWC)), (0, 0, reach, reach, reach, reach))
    return _halved(bordered, corner_weights(weight_OIKK), bias_O, scale_O)[0]


def corner_weights(weight_OIKK: Tensor) -> Tensor:
    """[4, D, D * C, O]: for each corner of a square, row by row, what meets each number of the patch that all share."""
    corners = [(row, column) for row in (0, 1) for column in (0, 1)]
    placed = [F.pad(weight_OIKK, (column, 1 - column, row, 1 - row)) for row, column in corners]
    return torch.stack(placed).permute(0, 3, 4, 2, 1).flatten(2, 3)


@torch.library.custom_op(
    "reverie::halved",
    mutates_args=(),
    schema="(Tensor pictures, Tensor weights, Tensor bias, Tensor scale) -> (Tensor, Tensor, Tensor)",
)
def _halved(pictures: Tensor, weights: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    from reverie.components.networks import halved_launches

    return halved_launches.halved(pictures, weights, bias, scale)


@torch.library.custom_op(
    "reverie::halved_gradients",
    mutates_args=(),
    schema="(Tensor gradient, Tensor pictures, Tensor weights, Tensor scale, Tensor largest, Tensor winner)"
    " -> (Tensor, Tensor, Tensor)",
)
def _halved_gradients(
    gradient: Tensor, pictures: Tensor, weights: Tensor, scale: Tensor, largest: Tensor, winner: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    from reverie.components.networks import halved_launches

    return halved_launches.halved_gradients(gradient, pictures, weights, scale, largest, winner)


@_halved.register_fake
def _halved_shapes(pictures: Tensor, weights: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, height, width, _ = pictures.shape
    border = weights.shape[1] - 2
    shape = batch, (height - border) // 2, (width - border) // 2, weights.shape[-1]
    return pictures.new_empty(shape), pictures.new_empty(shape), pictures.new_empty(shape, dtype=torch.int8)


@_halved_gradients.register_fake
def _halved_gradients_shapes(
    gradient: Tensor, pictures: Tensor, weights: Tensor, scale: Tensor, largest: Tensor, winner: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    one = scale.new_empty(scale.shape, dtype=torch.float32)
    return weights.new_empty(weights.shape, dtype=torch.float32), one, torch.empty_like(one)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    pictures, weights, _, scale = inputs
    _, largest, winner = output
    ctx.set_materialize_grads(False)  # nobody uses the other two results, and zeros of their size would be filled in
    ctx.save_for_backward(pictures, weights, scale, largest, winner)


def _backward(ctx: Any, gradient: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    weights, bias, scale = _halved_gradients(gradient, *ctx.saved_tensors)
    return None, weights, bias, scale


_halved.register_autograd(_backward, setup_context=_keep)
