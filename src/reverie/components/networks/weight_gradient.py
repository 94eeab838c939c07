"""A convolution that keeps height and width, and whose weights' gradient comes from a kernel of its own.

Only that: on wide maps cuDNN's deterministic kernels for it reach a fifth of what the matrix units can do, while those
for the result and for the picture's gradient are good, and stay where the compiler sees them. Triton is not everywhere
where torch is, and takes a second to load, so only a launch imports it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reverie.runtime.convolutions import convolutions_have_kernels

_LEAST_SIZE = 5
"""Of a weight, in rows and columns. Smaller ones are few products, which cuDNN makes fast enough."""
_LEAST_CHANNELS = 16
"""Of the picture, and of the result: matrix units take no fewer."""
_READ_AT_ONCE = 8
"""Narrow numbers that one copy moves. Rows of other lengths would be read in small pieces."""


def pays_off(x_NHWC: Tensor, weight_OIKK: Tensor) -> bool:
    """On a Hopper GPU, in types that matrix units multiply."""
    return convolutions_have_kernels() and x_NHWC.is_cuda and _suits(weight_OIKK, product_dtype(x_NHWC))


def _suits(weight_OIKK: Tensor, dtype: torch.dtype) -> bool:
    *channels, rows, columns = weight_OIKK.shape
    are_wide = all(one >= _LEAST_CHANNELS and one % _READ_AT_ONCE == 0 for one in channels)
    return dtype in (torch.bfloat16, torch.float16) and are_wide and rows == columns >= _LEAST_SIZE and rows % 2 == 1


def product_dtype(x: Tensor) -> torch.dtype:
    """What a convolution computes in here."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def same_conv(x_NHWC: Tensor, weight_OIKK: Tensor, bias_O: Tensor) -> Tensor:
    """Result in the type of products, gradients of weight and bias in float32."""
    return _SameConv.apply(x_NHWC.to(product_dtype(x_NHWC)), weight_OIKK, bias_O)  # pyright: ignore[reportReturnType]


class _SameConv(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NHWC: Tensor, weight_OIKK: Tensor, bias_O: Tensor) -> Tensor:
        x_NHWC = x_NHWC.contiguous()
        narrow_OIKK = weight_OIKK.to(x_NHWC.dtype, memory_format=torch.channels_last)
        ctx.save_for_backward(x_NHWC, narrow_OIKK)
        reach = weight_OIKK.shape[-1] // 2
        y_NCHW = F.conv2d(x_NHWC.permute(0, 3, 1, 2), narrow_OIKK, bias_O.to(x_NHWC.dtype), padding=reach)
        return y_NCHW.permute(0, 2, 3, 1)

    @staticmethod
    def backward(ctx: Any, gradient_NHWC: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x_NHWC, weight_OIKK = ctx.saved_tensors
        gradient_NHWC = gradient_NHWC.contiguous()
        to_x = to_weight = None
        if ctx.needs_input_grad[0]:
            to_x = _picture_gradient(gradient_NHWC, x_NHWC, weight_OIKK)
        if ctx.needs_input_grad[1]:
            to_weight = _weight_gradient(x_NHWC, gradient_NHWC, weight_OIKK.shape[-1]).permute(3, 2, 0, 1)
        return to_x, to_weight, gradient_NHWC.sum((0, 1, 2), dtype=torch.float32)


def _picture_gradient(gradient_NHWC: Tensor, x_NHWC: Tensor, weight_OIKK: Tensor) -> Tensor:
    gradient, x = (one.permute(0, 3, 1, 2) for one in (gradient_NHWC, x_NHWC))
    step, reach = [1, 1], [weight_OIKK.shape[-1] // 2] * 2
    wanted = [True, False, False]
    back = torch.ops.aten.convolution_backward
    to_x, *_ = back(gradient, x, weight_OIKK, None, step, reach, step, False, [0, 0], 1, wanted)
    return to_x.permute(0, 2, 3, 1)


@torch.library.custom_op(
    "reverie::weight_gradient", mutates_args=(), schema="(Tensor pictures, Tensor gradient, int size) -> Tensor"
)
def _weight_gradient(pictures: Tensor, gradient: Tensor, size: int) -> Tensor:
    """[size, size, I, O] in float32."""
    from reverie.components.networks import weight_gradient_launch

    return weight_gradient_launch.weight_gradient(pictures, gradient, size)


@_weight_gradient.register_fake
def _weight_gradient_shape(pictures: Tensor, gradient: Tensor, size: int) -> Tensor:
    shape = size, size, pictures.shape[-1], gradient.shape[-1]
    return pictures.new_empty(shape, dtype=torch.float32)
