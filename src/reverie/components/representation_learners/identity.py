"""The representation that changes nothing: the latent is the flat observation."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reverie.components.networks.one_hot import one_hot
from reverie.types import Space


class Identity(nn.Module):
    """Concatenates all keys in sorted order; discrete ones as one-hots, images scaled to [0, 1]."""

    def __init__(self, *, spaces: Mapping[str, Space]) -> None:
        super().__init__()
        self._spaces = {key: spaces[key] for key in sorted(spaces)}

    def dims(self) -> dict[str, int]:
        return {"feature_dim": sum(space.dim for space in self._spaces.values())}

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return torch.cat([_flat(obs[key], space) for key, space in self._spaces.items()], dim=-1)


def _flat(value: Tensor, space: Space) -> Tensor:
    if space.classes is not None:
        return one_hot(value, space.classes)
    flat = value.flatten(value.dim() - len(space.shape)) if space.shape else value.unsqueeze(-1)
    return flat.float() / 255 if space.is_image else flat.float()
