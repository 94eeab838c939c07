"""Encoder and decoder for pictures: as many convolutions that halve as there are that double, four unless told."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks import corner_convolutions, halved_convolution
from reverie.components.networks.distributions import ImageMse
from reverie.components.networks.layers import BlockLinear, Mlp, NormSilu, linear, truncated_normal_
from reverie.runtime.convolutions import convolutions_are_rewritten
from reverie.types import ReverieError, Space, require

MULTIPLIERS = (2, 3, 4, 4)
"""Channels of each stage, in units of ``depth``. Every stage halves the picture."""
STAGES = len(MULTIPLIERS)
"""Halvings from the picture to the smallest map, unless other multipliers are given."""
FEW_CHANNELS = 4
"""Up to here pooling is worth rewriting: 36 products stand for 25 then, but kernels want more channels than these."""


class ImageEncoder(nn.Module):
    """All pictures, joined on their channels in the order of their keys, through convolutions to one vector.

    A picture stays uint8 up to here: a quarter of the memory in replay and on the way.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        depth: int,
        multipliers: Sequence[int] = MULTIPLIERS,
        kernel: int = 5,
    ) -> None:
        super().__init__()
        depths = stage_depths(depth, multipliers)
        height, width, channels = picture_shape(spaces, stages=len(depths))
        self._keys = sorted(spaces)
        self.convolutions = nn.ModuleList([conv(a, b, kernel) for a, b in itertools.pairwise([channels, *depths])])
        self.norms = nn.ModuleList([NormSilu(dim) for dim in depths])
        self.output_dim = (height // 2 ** len(depths)) * (width // 2 ** len(depths)) * depths[-1]

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        pictures = torch.cat([obs[key] for key in self._keys], dim=-1)
        x_NHWC = pictures.flatten(0, -4).float() / 255 - 0.5
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            x_NHWC = halved_and_activated(layer, norm, x_NHWC)
        return x_NHWC.reshape(*pictures.shape[:-3], self.output_dim)


class ImageDecoder(nn.Module):
    """Pictures from a latent: ``deter`` through a block layer and ``stoch`` through a network, summed to a small map.

    The channels of all keys come from one last convolution, in sorted order of the keys.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        deter_dim: int,
        stoch_dim: int,
        units: int,
        depth: int,
        multipliers: Sequence[int] = MULTIPLIERS,
        blocks: int = 8,
        kernel: int = 5,
    ) -> None:
        super().__init__()
        depths = stage_depths(depth, multipliers)
        height, width, channels = picture_shape(spaces, stages=len(depths))
        self.channels = {key: spaces[key].shape[-1] for key in sorted(spaces)}
        if depths[-1] % blocks:
            raise ReverieError(f"the decoder's {depths[-1]} channels must be a multiple of its {blocks} blocks.")
        self._map_shape = (height // 2 ** len(depths), width // 2 ** len(depths), depths[-1])
        size = self._map_shape[0] * self._map_shape[1] * depths[-1]
        self._blocks = blocks
        self.from_deter = BlockLinear(deter_dim, size, blocks=blocks)
        self.from_stoch = Mlp(stoch_dim, layers=1, units=2 * units)
        self.from_stoch_output = linear(2 * units, size)
        self.map_norm = NormSilu(depths[-1])
        reversed_depths = depths[::-1]
        self.convolutions = nn.ModuleList([conv(a, b, kernel) for a, b in itertools.pairwise(reversed_depths)])
        self.norms = nn.ModuleList([NormSilu(dim) for dim in reversed_depths[1:]])
        self.output = conv(depths[0], channels, kernel)

    def forward(self, deter: Tensor, stoch: Tensor) -> dict[str, ImageMse]:
        x_NHWC = self._map(deter.flatten(0, -2), stoch.flatten(0, -2))
        for layer, norm in zip(self.convolutions, self.norms, strict=True):
            x_NHWC = norm(doubled_then_conv(layer, x_NHWC))
        pictures = doubled_then_conv(self.output, x_NHWC).float().sigmoid()
        parts = pictures.unflatten(0, deter.shape[:-1]).split(list(self.channels.values()), dim=-1)
        return {key: ImageMse(part) for key, part in zip(self.channels, parts, strict=True)}

    def _map(self, deter_ND: Tensor, stoch_ND: Tensor) -> Tensor:
        height, width, channels = self._map_shape
        one_NGK = self.from_deter(deter_ND.unflatten(-1, (self._blocks, -1)))
        # Every block owns some channels of the whole map.
        one_NGHWC = one_NGK.unflatten(-1, (height, width, channels // self._blocks))
        other = self.from_stoch_output(self.from_stoch(stoch_ND)).unflatten(-1, self._map_shape)
        return self.map_norm(one_NGHWC.permute(0, 2, 3, 1, 4).flatten(-2) + other)


def stage_depths(depth: int, multipliers: Sequence[int]) -> list[int]:
    require("multipliers of a picture's channels", len(multipliers), at_least=1)
    for channels in (depths := [depth * factor for factor in multipliers]):
        require("channels of a convolution", channels, at_least=1)
    return depths


def conv(input_dim: int, output_dim: int, kernel: int) -> nn.Conv2d:
    """Keeps height and width."""
    require("kernel of a convolution", kernel, at_least=1)
    if kernel % 2 == 0:
        raise ReverieError(f"the kernel of a convolution must be odd, got {kernel}.")
    layer = nn.Conv2d(input_dim, output_dim, kernel, padding=kernel // 2)
    truncated_normal_(layer.weight, fan_in=input_dim * kernel * kernel)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer


def halved_and_activated(layer: nn.Module, norm: nn.Module, x_NHWC: Tensor) -> Tensor:
    """One stage of the encoder. The first one moves the most memory, so there it has kernels of its own."""
    if _is_rewritten() and isinstance(norm, NormSilu) and norm.is_known_to_kernels:
        weight, bias = _parameters(layer)
        if weight.shape[1] <= FEW_CHANNELS and halved_convolution.can_be_fused(x_NHWC, weight):
            return halved_convolution.conv_halved_activated(x_NHWC, weight, bias, norm.scale)
    return norm(conv_then_halved(layer, x_NHWC))


def conv_then_halved(layer: nn.Module, x_NHWC: Tensor) -> Tensor:
    """The convolution, then the largest of every two by two pixels."""
    if not _is_rewritten():
        return channels_behind(F.max_pool2d(layer(channels_in_front(x_NHWC)), 2))
    weight, bias = _parameters(layer)
    if weight.shape[1] <= FEW_CHANNELS:
        return corner_convolutions.conv_then_halved(x_NHWC, weight, bias)
    y_NHWC = corner_convolutions.channels_last_conv(x_NHWC, weight, bias)
    return channels_behind(F.max_pool2d(channels_in_front(y_NHWC), 2))


def doubled_then_conv(layer: nn.Module, x_NHWC: Tensor) -> Tensor:
    """Every pixel becomes two by two equal ones, then the convolution."""
    if not _is_rewritten():
        return channels_behind(layer(doubled(channels_in_front(x_NHWC))))
    return corner_convolutions.doubled_then_conv(x_NHWC, *_parameters(layer))


def _is_rewritten() -> bool:
    """Where there is learning. The few pictures of a policy that acts cost operations more than arithmetic."""
    return convolutions_are_rewritten() and torch.is_grad_enabled()


def _parameters(layer: nn.Module) -> tuple[Tensor, Tensor]:
    assert isinstance(layer, nn.Conv2d)
    assert layer.bias is not None
    return layer.weight, layer.bias


def channels_in_front(x_NHWC: Tensor) -> Tensor:
    """What torch's convolutions want; the memory stays as it is, which they call channels_last."""
    return x_NHWC.permute(0, 3, 1, 2)


def channels_behind(x_NCHW: Tensor) -> Tensor:
    return x_NCHW.permute(0, 2, 3, 1)


def doubled(x_NCHW: Tensor) -> Tensor:
    return F.interpolate(x_NCHW, scale_factor=2, mode="nearest")


def picture_shape(spaces: Mapping[str, Space], *, stages: int = STAGES) -> tuple[int, int, int]:
    """Height, width and the sum of all channels. Pictures that cannot be halved ``stages`` times are refused."""
    sizes = {space.shape[:2] for space in spaces.values()}
    if len(sizes) > 1:
        shown = ", ".join(f"'{key}' {space.shape[0]}x{space.shape[1]}" for key, space in spaces.items())
        raise ReverieError(f"all pictures must have one height and width, got {shown}: resize them or leave some out.")
    height, width = next(iter(spaces.values())).shape[:2]
    if height % 2**stages or width % 2**stages:
        raise ReverieError(f"pictures of {height}x{width} must be resized to multiples of {2**stages}, such as 64x64.")
    return height, width, sum(space.shape[-1] for space in spaces.values())
