"""A decoder for algorithms that have none: it lets people see what a latent stands for, and teaches nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from reverie.components.networks.distributions import ImageMse
from reverie.components.networks.images import STAGES
from reverie.components.networks.observations import (
    EVERY_KEY,
    ImageDecoderPart,
    ObservationDecoder,
    Prediction,
    VectorDecoderPart,
    chosen_spaces,
)
from reverie.types import Space


class ProbeDecoder(nn.Module):
    """One prediction for each chosen key, from latents [..., D] that the caller has detached.

    Its initial weights are drawn beside those of the agent, which begins the same with a probe and without. Pictures
    may have any size: they are decoded in the next larger one that can be doubled up to, and cut.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        latent_dim: int,
        vectors: Callable[..., VectorDecoderPart],
        images: Callable[..., ImageDecoderPart],
        keys: Sequence[str] = EVERY_KEY,
    ) -> None:
        super().__init__()
        self._shapes = {key: space.shape for key, space in chosen_spaces(spaces, keys).items() if space.is_image}
        with torch.random.fork_rng(devices=()):
            self.decoder = ObservationDecoder(
                spaces={key: _roomy(space) for key, space in spaces.items()},
                deter_dim=latent_dim,
                stoch_dim=0,
                vectors=vectors,
                images=images,
                keys=keys,
            )

    def forward(self, latent: Tensor) -> dict[str, Prediction]:
        return {key: self._cut(key, one) for key, one in self.decoder(latent, latent[..., :0]).items()}

    def loss(self, latent: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """The mean over the rows of what all keys cost together."""
        return torch.stack([one.loss(obs[key]).mean() for key, one in self(latent).items()]).sum()

    def _cut(self, key: str, prediction: Prediction) -> Prediction:
        if not isinstance(prediction, ImageMse):
            return prediction
        height, width, _ = self._shapes[key]
        return ImageMse(prediction.mean()[..., :height, :width, :])


def _roomy(space: Space) -> Space:
    """Of a size that can be halved and doubled again."""
    if not space.is_image:
        return space
    step = 2**STAGES
    height, width = (-(-size // step) * step for size in space.shape[:2])
    return replace(space, shape=(height, width, space.shape[2]))
