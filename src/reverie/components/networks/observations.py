"""Encoder and decoder for observations of any kind: vectors, discrete values, pictures, and all of them together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from reverie.types import ReverieError, Space

EVERY_KEY = (".*",)


class Prediction(Protocol):
    """What a decoder says about one key."""

    def loss(self, target: Tensor, /) -> Tensor: ...


class EncoderPart(Protocol):
    """A module that reads all vectors, or all pictures, and makes ``output_dim`` numbers of them."""

    @property
    def output_dim(self) -> int: ...

    def __call__(self, obs: Mapping[str, Tensor], /) -> Tensor: ...


class VectorDecoderPart(Protocol):
    def __call__(self, feature: Tensor, /) -> Mapping[str, Prediction]: ...


class ImageDecoderPart(Protocol):
    def __call__(self, deter: Tensor, stoch: Tensor, /) -> Mapping[str, Prediction]: ...


class ObservationEncoder(nn.Module):
    """Tokens of the chosen keys: features of the vectors first, then those of the pictures.

    ``keys`` are regular expressions; a key is read where one of them matches its whole name. ``vectors`` and ``images``
    make the two parts; each is called with the ``spaces`` of its kind, where there are any.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        vectors: Callable[..., EncoderPart],
        images: Callable[..., EncoderPart],
        keys: Sequence[str] = EVERY_KEY,
    ) -> None:
        super().__init__()
        vector_spaces, image_spaces = split_kinds(chosen_spaces(spaces, keys))
        self.vectors = vectors(spaces=vector_spaces) if vector_spaces else None
        self.images = images(spaces=image_spaces) if image_spaces else None

    def dims(self) -> dict[str, int]:
        return {"token_dim": sum(part.output_dim for part in (self.vectors, self.images) if part is not None)}

    def forward(self, obs: Mapping[str, Tensor]) -> Tensor:
        parts = [part(obs) for part in (self.vectors, self.images) if part is not None]
        return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]


class ObservationDecoder(nn.Module):
    """One prediction for each chosen key, from the two parts of a latent.

    ``vectors`` is called with ``spaces`` and ``feature_dim``, and ``images`` with ``spaces``, ``deter_dim`` and
    ``stoch_dim``, where there are any.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        deter_dim: int,
        stoch_dim: int,
        vectors: Callable[..., VectorDecoderPart],
        images: Callable[..., ImageDecoderPart],
        keys: Sequence[str] = EVERY_KEY,
    ) -> None:
        super().__init__()
        vector_spaces, image_spaces = split_kinds(chosen_spaces(spaces, keys))
        self.vectors, self.images = None, None
        if vector_spaces:
            self.vectors = vectors(spaces=vector_spaces, feature_dim=deter_dim + stoch_dim)
        if image_spaces:
            self.images = images(spaces=image_spaces, deter_dim=deter_dim, stoch_dim=stoch_dim)

    def forward(self, deter: Tensor, stoch: Tensor) -> dict[str, Prediction]:
        found: dict[str, Prediction] = {}
        if self.vectors is not None:
            # The order in which the reference's vector decoder reads the latent; heads read the other one.
            found |= self.vectors(torch.cat([stoch, deter], -1))
        if self.images is not None:
            found |= self.images(deter, stoch)
        return found


def chosen_spaces(spaces: Mapping[str, Space], patterns: Sequence[str]) -> dict[str, Space]:
    """The keys that match, sorted. A pattern that matches nothing is a mistake of the configuration."""
    chosen: dict[str, Space] = {}
    for pattern in patterns:
        try:
            found = [key for key in spaces if re.fullmatch(pattern, key)]
        except re.error as error:
            raise ReverieError(f"`keys` holds '{pattern}', which is no regular expression ({error}).") from error
        if not found:
            raise ReverieError(
                f"`keys` holds '{pattern}', which matches no observation: there are {', '.join(sorted(spaces))}."
            )
        chosen |= {key: spaces[key] for key in found}
    if not chosen:
        raise ReverieError("`keys` chooses no observation: name at least one, or '.*' for all.")
    return {key: chosen[key] for key in sorted(chosen)}


def split_kinds(spaces: Mapping[str, Space]) -> tuple[dict[str, Space], dict[str, Space]]:
    """Vectors (and discrete values), and pictures."""
    vectors = {key: space for key, space in spaces.items() if not space.is_image}
    return vectors, {key: space for key, space in spaces.items() if space.is_image}
