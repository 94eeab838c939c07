"""Encoder and decoder for pictures with strides: those of DreamerV1, DreamerV2 and the 2023 form of DreamerV3."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reverie.components.networks.distributions import ImageMse
from reverie.components.networks.images import STAGES, channels_behind, channels_in_front, picture_shape
from reverie.components.networks.layers import (
    Activation,
    Norm,
    fan_beside,
    linear,
    norm_activation,
    truncated_normal_,
)
from reverie.types import ReverieError, Space

UNPADDED_SIDE = 64


class StridedImageEncoder(nn.Module):
    """All pictures, joined on their channels, through four 4x4 convolutions of stride 2 to one vector.

    The channels double from ``depth`` on. Padded ones halve a picture exactly; those without padding, of DreamerV1 and
    DreamerV2, are made for 64x64.
    """

    def __init__(
        self, *, spaces: Mapping[str, Space], depth: int, is_padded: bool, norm: Norm, activation: Activation
    ) -> None:
        super().__init__()
        height, width, channels = strided_shape(spaces, is_padded=is_padded)
        self._keys = sorted(spaces)
        depths = [depth * 2**stage for stage in range(STAGES)]
        self.convolutions = nn.ModuleList(
            [_conv(a, b, norm=norm, padding=int(is_padded)) for a, b in itertools.pairwise([channels, *depths])]
        )
        self.norms = nn.ModuleList([norm_activation(dim, norm=norm, activation=activation) for dim in depths])
        pixels = (height // 2**STAGES) * (width // 2**STAGES) if is_padded else 2 * 2
        self.output_dim = pixels * depths[-1]

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        pictures = torch.cat([obs[key] for key in self._keys], dim=-1)
        x_NHWC = pictures.flatten(0, -4).float() / 255 - 0.5
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            x_NHWC = norm(channels_behind(layer(channels_in_front(x_NHWC))))
        return x_NHWC.reshape(*pictures.shape[:-3], self.output_dim)


class StridedImageDecoder(nn.Module):
    """Pictures from a latent: one linear layer to a small map, then four transposed convolutions of stride 2.

    Padded ones double the map exactly, with kernels of 4; without padding one point grows to 64x64, with kernels of 5,
    5, 6 and 6. The output is the picture minus one half. ``error_weight`` multiplies the squared error: 0.5 is that of
    a normal with deviation 1, whose constant is left out.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        deter_dim: int,
        stoch_dim: int,
        depth: int,
        is_padded: bool,
        norm: Norm,
        activation: Activation,
        error_weight: float = 1.0,
    ) -> None:
        super().__init__()
        height, width, channels = strided_shape(spaces, is_padded=is_padded)
        self.channels = {key: spaces[key].shape[-1] for key in sorted(spaces)}
        self._error_weight = error_weight
        self._map_shape = (1, 1, 32 * depth)
        if is_padded:
            self._map_shape = (height // 2**STAGES, width // 2**STAGES, 8 * depth)
        size = self._map_shape[0] * self._map_shape[1] * self._map_shape[2]
        self.input = linear(deter_dim + stoch_dim, size, fan=fan_beside(norm))
        depths = [self._map_shape[-1], 4 * depth, 2 * depth, depth]
        kernels, padding = ((4, 4, 4, 4), 1) if is_padded else ((5, 5, 6, 6), 0)
        self.convolutions = nn.ModuleList(
            [
                _transposed_conv(a, b, kernel, norm=norm, padding=padding)
                for (a, b), kernel in zip(itertools.pairwise(depths), kernels[:-1], strict=True)
            ]
        )
        self.norms = nn.ModuleList([norm_activation(dim, norm=norm, activation=activation) for dim in depths[1:]])
        self.output = _transposed_conv(depth, channels, kernels[-1], norm="none", padding=padding)

    def forward(self, deter: Tensor, stoch: Tensor) -> dict[str, ImageMse]:
        feature_ND = torch.cat([deter, stoch], -1).flatten(0, -2)
        x_NHWC = self.input(feature_ND).unflatten(-1, self._map_shape)
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            x_NHWC = norm(channels_behind(layer(channels_in_front(x_NHWC))))
        pictures = channels_behind(self.output(channels_in_front(x_NHWC))).float() + 0.5
        parts = pictures.unflatten(0, deter.shape[:-1]).split(list(self.channels.values()), dim=-1)
        return {key: ImageMse(part, weight=self._error_weight) for key, part in zip(self.channels, parts, strict=True)}


def strided_shape(spaces: Mapping[str, Space], *, is_padded: bool) -> tuple[int, int, int]:
    """Height, width and the sum of all channels."""
    height, width, channels = picture_shape(spaces)
    if not is_padded and (height, width) != (UNPADDED_SIDE, UNPADDED_SIDE):
        raise ReverieError(
            f"convolutions without padding are made for pictures of {UNPADDED_SIDE}x{UNPADDED_SIDE}, got "
            f"{height}x{width}: resize them in the environment, or set `is_padded` in encoder and decoder."
        )
    return height, width, channels


def _conv(input_dim: int, output_dim: int, *, norm: Norm, padding: int) -> nn.Conv2d:
    layer = nn.Conv2d(input_dim, output_dim, 4, stride=2, padding=padding, bias=norm != "layer")
    _initialize(layer, norm=norm)
    return layer


def _transposed_conv(input_dim: int, output_dim: int, kernel: int, *, norm: Norm, padding: int) -> nn.ConvTranspose2d:
    layer = nn.ConvTranspose2d(input_dim, output_dim, kernel, stride=2, padding=padding, bias=norm != "layer")
    _initialize(layer, norm=norm)
    return layer


def _initialize(layer: nn.Conv2d | nn.ConvTranspose2d, *, norm: Norm) -> None:
    area = layer.kernel_size[0] * layer.kernel_size[1]
    fan_in, fan_out = layer.in_channels * area, layer.out_channels * area
    truncated_normal_(layer.weight, fan_in=fan_in if fan_beside(norm) == "in" else (fan_in + fan_out) / 2)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
