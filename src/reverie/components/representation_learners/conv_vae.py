"""The variational autoencoder of World Models (2018): one picture, one normal latent."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.images import channels_behind, channels_in_front
from reverie.components.networks.layers import linear, truncated_normal_
from reverie.types import ReverieError, Space, require

SIDE = 64
"""Pixels of a side: four convolutions without padding leave 2x2 of it, and four back make exactly this of one point."""
_ENCODER_KERNELS = (4, 4, 4, 4)
_DECODER_KERNELS = (5, 5, 6, 6)


class ConvVae(nn.Module):
    """Reads the only picture of an observation; what else the observation holds is not seen.

    ``kl_tolerance`` is per latent number: a row's KL below ``kl_tolerance * latent`` is not reduced further.
    """

    def __init__(
        self, *, spaces: Mapping[str, Space], latent: int = 32, depth: int = 32, kl_tolerance: float = 0.5
    ) -> None:
        super().__init__()
        require("latent of the VAE", latent, at_least=1)
        require("depth of the VAE", depth, at_least=1)
        require("kl_tolerance of the VAE", kl_tolerance, at_least=0)
        self.key = picture_key(spaces)
        self.latent = latent
        self._floor = kl_tolerance * latent
        channels = spaces[self.key].shape[-1]
        depths = [channels, depth, 2 * depth, 4 * depth, 8 * depth]
        self.encoder = nn.ModuleList(
            [_conv(a, b, k) for (a, b), k in zip(itertools.pairwise(depths), _ENCODER_KERNELS, strict=True)]
        )
        self.mean = linear(2 * 2 * depths[-1], latent, fan="average")
        self.log_variance = linear(2 * 2 * depths[-1], latent, fan="average")
        self.from_latent = linear(latent, 32 * depth, fan="average")
        reversed_depths = [32 * depth, 4 * depth, 2 * depth, depth, channels]
        self.decoder = nn.ModuleList(
            [_deconv(a, b, k) for (a, b), k in zip(itertools.pairwise(reversed_depths), _DECODER_KERNELS, strict=True)]
        )

    def dims(self) -> dict[str, int]:
        return {"latent_dim": self.latent}

    def encoded(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Mean and log variance [..., latent] of pictures [..., height, width, channels]."""
        picture = obs[self.key]
        x_NCHW = channels_in_front(picture.flatten(0, -4).float() / 255)
        for layer in self.encoder:
            x_NCHW = F.relu(layer(x_NCHW))
        flat = channels_behind(x_NCHW).flatten(1)
        shape = (*picture.shape[:-3], self.latent)
        return self.mean(flat).float().view(shape), self.log_variance(flat).float().view(shape)

    def decoded(self, latent: Tensor) -> Tensor:
        """Pictures from 0 to 1, shaped [..., height, width, channels]."""
        return self._logits(latent).sigmoid()

    def losses(self, obs: Mapping[str, Tensor], noise: Tensor) -> dict[str, Tensor]:
        """Per row: the squared error summed over its pixels, and its KL from the standard normal, with the floor."""
        mean, log_variance = self.encoded(obs)
        picture = self.decoded(sampled(mean, log_variance, noise))
        return {
            "reconstruction": (picture - obs[self.key].float() / 255).square().sum((-1, -2, -3)),
            "kl": kl_from_standard(mean, log_variance).clamp(min=self._floor),
        }

    def _logits(self, latent: Tensor) -> Tensor:
        x_NCHW = self.from_latent(latent.flatten(0, -2)).unflatten(-1, (-1, 1, 1))
        *inner, last = self.decoder
        for layer in inner:
            x_NCHW = F.relu(layer(x_NCHW))
        return channels_behind(last(x_NCHW)).float().unflatten(0, latent.shape[:-1])


def picture_key(spaces: Mapping[str, Space]) -> str:
    """The one key of 64x64 pictures; anything else is the configuration's mistake."""
    pictures = {key: space for key, space in spaces.items() if space.is_image}
    if len(pictures) != 1:
        found = ", ".join(f"'{key}' {list(space.shape)}" for key, space in spaces.items())
        raise ReverieError(
            f"the VAE reads one picture, but the observation has {len(pictures) or 'none'} ({found}): choose a task "
            "with one, or the suite's option that shows pictures."
        )
    ((key, space),) = pictures.items()
    if space.shape[:2] != (SIDE, SIDE):
        raise ReverieError(
            f"the VAE is made for pictures of {SIDE}x{SIDE}, but '{key}' has {space.shape[0]}x{space.shape[1]}: set "
            f"environment.simulator.size={SIDE}."
        )
    return key


def sampled(mean: Tensor, log_variance: Tensor, noise: Tensor) -> Tensor:
    """The normal's sample that belongs to this standard normal ``noise``."""
    return mean + (log_variance / 2).exp() * noise


def kl_from_standard(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, exp(log_variance)) || N(0, 1)), summed over the last axis."""
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum(-1)


def _conv(input_dim: int, output_dim: int, kernel: int) -> nn.Conv2d:
    layer = nn.Conv2d(input_dim, output_dim, kernel, stride=2)
    _initialize(layer, kernel * kernel)
    return layer


def _deconv(input_dim: int, output_dim: int, kernel: int) -> nn.ConvTranspose2d:
    layer = nn.ConvTranspose2d(input_dim, output_dim, kernel, stride=2)
    _initialize(layer, kernel * kernel)
    return layer


def _initialize(layer: nn.Conv2d | nn.ConvTranspose2d, area: int) -> None:
    truncated_normal_(layer.weight, fan_in=(layer.in_channels + layer.out_channels) * area / 2)
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
