"""Encoder and decoder for vector observations: numbers through symlog or as they are, discrete values as one-hots."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from reverie.components.networks.distributions import OneHot, OneHots, SymlogMse, UnitNormal
from reverie.components.networks.layers import Activation, Mlp, Norm, fan_beside, linear
from reverie.components.networks.one_hot import one_hot
from reverie.components.networks.symlog import symlog
from reverie.types import ReverieError, Space


class VectorEncoder(nn.Module):
    """All keys, concatenated in sorted order, through one network to tokens. ``has_symlog`` squashes numbers first."""

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        layers: int,
        units: int,
        norm: Norm = "rms",
        activation: Activation = "silu",
        has_symlog: bool = True,
    ) -> None:
        super().__init__()
        self.spaces, self._has_symlog = vector_spaces(spaces), has_symlog
        input_dim = sum(space.dim for space in self.spaces.values())
        self.mlp = Mlp(input_dim, layers=layers, units=units, norm=norm, activation=activation)

    @property
    def output_dim(self) -> int:
        return self.mlp.output_dim

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self.mlp(torch.cat([self._vector(obs[key], space) for key, space in self.spaces.items()], dim=-1))

    def _vector(self, value: Tensor, space: Space) -> Tensor:
        if space.classes is not None:
            return one_hot(value, space.classes)
        vector = value.float() if space.shape else value.float().unsqueeze(-1)
        return symlog(vector) if self._has_symlog else vector


class VectorDecoder(nn.Module):
    """One network on the latent, one linear output per key.

    With ``has_symlog`` numbers are predicted in symlog space, else as means of normals with deviation 1.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        feature_dim: int,
        layers: int,
        units: int,
        norm: Norm = "rms",
        activation: Activation = "silu",
        has_symlog: bool = True,
    ) -> None:
        super().__init__()
        self.spaces, self._has_symlog = vector_spaces(spaces), has_symlog
        self.mlp = Mlp(feature_dim, layers=layers, units=units, norm=norm, activation=activation)
        # By position: a key may hold characters, or be a word, that a module cannot be called.
        self.outputs = nn.ModuleList([linear(units, space.dim, fan=fan_beside(norm)) for space in self.spaces.values()])

    def forward(self, feature: Tensor) -> dict[str, OneHot | OneHots | SymlogMse | UnitNormal]:
        hidden = self.mlp(feature)
        outputs = zip(self.spaces.items(), self.outputs, strict=True)
        return {key: self._prediction(layer(hidden), space) for (key, space), layer in outputs}

    def _prediction(self, output: Tensor, space: Space) -> OneHot | OneHots | SymlogMse | UnitNormal:
        if isinstance(space.classes, tuple):
            return OneHots(output, space.classes)
        if space.is_discrete:
            return OneHot(output)
        return SymlogMse(output) if self._has_symlog else UnitNormal(output, is_vector=True)


def vector_spaces(spaces: Mapping[str, Space]) -> dict[str, Space]:
    for key, space in spaces.items():
        if space.is_image or len(space.shape) > 1:
            raise ReverieError(
                f"observation '{key}' has shape {space.shape} and type {space.dtype}; only vectors and uint8 pictures "
                "of shape HxWxC can be read: leave it out of `keys`, or wrap the environment."
            )
    return {key: spaces[key] for key in sorted(spaces)}
