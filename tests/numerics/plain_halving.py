"""The first layer of an encoder of pictures in torch's operations, and made-up layers of all sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.components.networks.layers import NORM_EPSILON

Form = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Layer:
    pictures: int = 2
    height: int = 8
    width: int = 12
    channels: int = 3
    outputs: int = 8
    kernel: int = 5
    has_ties: bool = False
    """Numbers of one or two bits: sums are exact in any order, and corners of a square are often equal."""


def made_up(layer: Layer, device: str = "cpu") -> list[Tensor]:
    """Picture, weight, bias and scale. Colours and weights are random, also where a fresh model has zeros and ones."""
    rng = torch.Generator().manual_seed(layer.outputs + 100 * layer.kernel)
    shape = layer.pictures, layer.height, layer.width, layer.channels
    terms = layer.kernel**2 * layer.channels
    weight = torch.randn(layer.outputs, layer.channels, layer.kernel, layer.kernel, generator=rng) / terms**0.5
    bias, scale = (torch.randn(layer.outputs, generator=rng) for _ in range(2))
    colours = torch.randint(256, shape, dtype=torch.uint8, generator=rng)
    x = colours.float() / 255 - 0.5
    if layer.has_ties:
        x, weight, bias = (x * 3).round(), (weight * terms**0.5).round(), bias.round()
    return [x.to(device), *(one.to(device).requires_grad_() for one in (weight, bias, scale))]


def plain_halving(x_NHWC: Tensor, weight: Tensor, bias: Tensor, scale: Tensor) -> Tensor:
    y_NCHW = F.conv2d(x_NHWC.permute(0, 3, 1, 2), weight, bias, padding=weight.shape[-1] // 2)
    y_NHWC = F.max_pool2d(y_NCHW, 2).permute(0, 2, 3, 1)
    return F.silu(F.rms_norm(y_NHWC.float(), scale.shape, scale, NORM_EPSILON)).to(y_NHWC.dtype)


def outcome(form: Form, parts: list[Tensor]) -> dict[str, Tensor]:
    """Values, and gradients of all that learns under a made-up loss."""
    value = form(*parts)
    rng = torch.Generator().manual_seed(7)
    cotangent = torch.randn(value.shape, generator=rng).to(value.device)
    gradients = torch.autograd.grad((value.float() * cotangent).sum(), parts[1:])
    return {"value": value.detach()} | dict(zip(("weight", "bias", "scale"), gradients, strict=True))


def share_of_ties(parts: list[Tensor]) -> float:
    """Squares whose largest corner is not alone."""
    x_NHWC, weight, bias, _ = parts
    y_NCHW = F.conv2d(x_NHWC.permute(0, 3, 1, 2), weight, bias, padding="same")
    corners = y_NCHW.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).transpose(3, 4).flatten(4).sort(-1).values
    return float((corners[..., 3] == corners[..., 2]).float().mean())


def distance(one: Tensor, other: Tensor) -> float:
    """As a share of the size."""
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-12))
