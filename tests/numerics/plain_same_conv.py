"""Convolutions that keep height and width, made-up pictures for them, and what torch computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Form = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of pictures [N, H, W, I], weight and bias."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    pictures: int = 2
    height: int = 6
    width: int = 8
    inputs: int = 16
    outputs: int = 16
    size: int = 5


def made_up(layer: Layer, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(layer.pictures, layer.height, layer.width, layer.inputs, generator=rng)
    weight = torch.randn(layer.outputs, layer.inputs, layer.size, layer.size, generator=rng) * 0.1
    bias = torch.randn(layer.outputs, generator=rng)
    x, weight, bias = (one.to(device).requires_grad_() for one in (x, weight, bias))
    return x, weight, bias


def plain_same_conv(x_NHWC: Tensor, weight_OIKK: Tensor, bias_O: Tensor) -> Tensor:
    y_NCHW = F.conv2d(x_NHWC.permute(0, 3, 1, 2), weight_OIKK, bias_O, padding=weight_OIKK.shape[-1] // 2)
    return y_NCHW.permute(0, 2, 3, 1)


def outcome(form: Form, parts: tuple[Tensor, Tensor, Tensor]) -> dict[str, Tensor]:
    """The value, and what a made-up loss asks of each part."""
    value = form(*parts)
    wanted = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(value.device)
    found = torch.autograd.grad((value.float() * wanted).sum(), parts)
    return {"value": value.detach()} | dict(zip(("picture", "weight", "bias"), found, strict=True))


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-12))
