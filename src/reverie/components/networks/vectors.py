"""Encoder and decoder for vector observations: continuous ones through symlog, discrete ones as one-hots."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reverie.components.networks.distributions import OneHot, OneHots, SymlogMse
from reverie.components.networks.layers import Mlp, linear
from reverie.components.networks.one_hot import one_hot
from reverie.components.networks.symlog import symlog
from reverie.types import ReverieError, Space


class VectorEncoder(nn.Module):
    """All keys, concatenated in sorted order, through one network to tokens."""

    def __init__(self, *, spaces: Mapping[str, Space], layers: int, units: int) -> None:
        super().__init__()
        self.spaces = _vector_spaces(spaces)
        self.mlp = Mlp(sum(space.dim for space in self.spaces.values()), layers=layers, units=units)

    @property
    def output_dim(self) -> int:
        return self.mlp.output_dim

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.mlp(torch.cat([_vector(obs[key], space) for key, space in self.spaces.items()], dim=-1))


class VectorDecoder(nn.Module):
    """One network on the latent, one linear output per key."""

    def __init__(self, *, spaces: Mapping[str, Space], feature_dim: int, layers: int, units: int) -> None:
        super().__init__()
        self.spaces = _vector_spaces(spaces)
        self.mlp = Mlp(feature_dim, layers=layers, units=units)
        # By position: a key may hold characters, or be a word, that a module cannot be called.
        self.outputs = nn.ModuleList([linear(self.mlp.output_dim, space.dim) for space in self.spaces.values()])

    def forward(self, feature: Tensor) -> dict[str, OneHot | OneHots | SymlogMse]:
        hidden = self.mlp(feature)
        outputs = zip(self.spaces.items(), self.outputs, strict=True)
        return {key: _prediction(layer(hidden), space) for (key, space), layer in outputs}


def _vector_spaces(spaces: Mapping[str, Space]) -> dict[str, Space]:
    for key, space in spaces.items():
        if space.is_image or len(space.shape) > 1:
            raise ReverieError(
                f"observation '{key}' has shape {space.shape} and type {space.dtype}; only vectors and uint8 pictures "
                "of shape HxWxC can be read: leave it out of `keys`, or wrap the environment."
            )
    return {key: spaces[key] for key in sorted(spaces)}


def _prediction(output: Tensor, space: Space) -> OneHot | OneHots | SymlogMse:
    if isinstance(space.classes, tuple):
        return OneHots(output, space.classes)
    return OneHot(output) if space.is_discrete else SymlogMse(output)


def _vector(value: Tensor, space: Space) -> Tensor:
    if space.classes is not None:
        return one_hot(value, space.classes)
    return symlog(value.float() if space.shape else value.float().unsqueeze(-1))
