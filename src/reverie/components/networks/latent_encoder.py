"""Observations become one latent: vectors through a small network, pictures through convolutions and random shifts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch
from torch import Generator, Tensor, nn

from reverie.components.networks.normed import NormedLinear, NormedMlp, SimNorm
from reverie.components.networks.observations import EVERY_KEY, chosen_spaces, split_kinds
from reverie.components.networks.one_hot import one_hot
from reverie.components.networks.vectors import vector_spaces
from reverie.types import ReverieError, Space, require

Shift = dict[str, Tensor]
"""For each picture that is shifted: how far down and right [..., 2], from 0 to twice the margin."""
Discount: TypeAlias = "float | Tensor"
"""One for everything, or of each task or sequence its own."""


class LatentPart(Protocol):
    """A module that reads all vectors, or all pictures."""

    def __call__(self, obs: Mapping[str, Tensor], shift: Shift, /) -> Tensor: ...

    def shift(self, shape: Sequence[int], rng: Generator, /) -> Shift: ...

    def no_shift(self, shape: Sequence[int], device: torch.device, /) -> Shift: ...


class LatentEncoder(nn.Module):
    """``vectors`` and ``images`` are called with the ``spaces`` of their kind and ``latent_dim``, where there are any.

    A task with both has the mean of both: a mean of two SimNorms keeps every group's sum.
    """

    tasks: int = 1

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        latent_dim: int,
        vectors: Callable[..., LatentPart],
        images: Callable[..., LatentPart],
        keys: Sequence[str] = EVERY_KEY,
    ) -> None:
        super().__init__()
        require("latent_dim of the encoder", latent_dim, at_least=1)
        vector_part, image_part = split_kinds(chosen_spaces(spaces, keys))
        self.latent_dim = latent_dim
        self.vectors = vectors(spaces=vector_part, latent_dim=latent_dim) if vector_part else None
        self.images = images(spaces=image_part, latent_dim=latent_dim) if image_part else None

    def dims(self) -> dict[str, int]:
        return {"latent_dim": self.latent_dim}

    def shift(self, shape: Sequence[int], rng: Generator) -> Shift:
        """Random shifts for observations of this leading shape; empty where nothing is shifted."""
        return self.images.shift(shape, rng) if self.images is not None else {}

    def no_shift(self, shape: Sequence[int], device: torch.device) -> Shift:
        """What leaves observations where they are; nothing is drawn."""
        return self.images.no_shift(shape, device) if self.images is not None else {}

    def action_mask(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        """[..., A]: 0 for the parts of an action that the task of ``obs`` does not read. None: it reads all."""
        return None

    def discount(self, discount: Discount, obs: Mapping[str, Tensor]) -> Discount:
        """That of the task of each of these observations."""
        return discount

    def retold(self, latent: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        """Latents of an update ago, with what is known by now of the task that these observations belong to."""
        return latent

    def settle(self, *, unless: Tensor) -> None:
        """What must hold of the weights after each update, is made to."""

    def forward(self, obs: Mapping[str, Tensor], shift: Shift) -> Tensor:
        parts = [part(obs, shift) for part in (self.vectors, self.images) if part is not None]
        return (parts[0] if len(parts) == 1 else torch.stack(parts).mean(0)).float()


class VectorLatent(nn.Module):
    """All vectors side by side, in sorted order, as they are; discrete values as one-hots."""

    def __init__(
        self, *, spaces: Mapping[str, Space], latent_dim: int, network: Callable[..., nn.Module] = NormedMlp
    ) -> None:
        super().__init__()
        self.spaces = vector_spaces(spaces)
        self.network = network(sum(space.dim for space in self.spaces.values()), latent_dim)

    def shift(self, shape: Sequence[int], rng: Generator) -> Shift:
        """Vectors stay where they are."""
        return {}

    def no_shift(self, shape: Sequence[int], device: torch.device) -> Shift:
        return {}

    def forward(self, obs: Mapping[str, Tensor], shift: Shift) -> Tensor:
        return self.network(torch.cat([_numbers(obs[key], space) for key, space in self.spaces.items()], -1))


class PixelLatent(nn.Module):
    """Pictures of one size, one behind the other in their channels, each randomly shifted by up to ``margin`` pixels
    (in training and acting alike), through four convolutions and a SimNorm.

    Where the convolutions do not end in as many numbers as a latent has, a normed linear layer stands between.
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        latent_dim: int,
        channels: int = 32,
        margin: int = 3,
        simnorm_dim: int | None = 8,
    ) -> None:
        super().__init__()
        require("channels of the encoder", channels, at_least=1)
        require("margin of the encoder", margin, at_least=0)
        self._keys, self._margin = sorted(spaces), margin
        self._size = _common_size(spaces)
        depth = sum(space.shape[2] for space in spaces.values())
        self.convolutions = nn.Sequential(
            *(nn.Conv2d(depth, channels, 7, stride=2), nn.ReLU(), nn.Conv2d(channels, channels, 5, stride=2)),
            *(nn.ReLU(), nn.Conv2d(channels, channels, 3, stride=2), nn.ReLU()),
            *(nn.Conv2d(channels, channels, 3, stride=1), nn.Flatten()),
        )
        width = channels * _end(self._size[0]) * _end(self._size[1])
        if width != latent_dim:
            self.output: nn.Module = NormedLinear(width, latent_dim, simnorm_dim=simnorm_dim)
        else:
            self.output = SimNorm(simnorm_dim) if simnorm_dim else nn.Identity()

    def shift(self, shape: Sequence[int], rng: Generator) -> Shift:
        drawn = torch.randint(2 * self._margin + 1, (*shape, 2), device=rng.device, generator=rng)
        return {"image": drawn}

    def no_shift(self, shape: Sequence[int], device: torch.device) -> Shift:
        return {"image": torch.full((*shape, 2), self._margin, device=device)}

    def forward(self, obs: Mapping[str, Tensor], shift: Shift) -> Tensor:
        picture = torch.cat([obs[key] for key in self._keys], -1)
        lead = picture.shape[:-3]
        moved = shifted(picture.flatten(0, -4), shift["image"].flatten(0, -2), margin=self._margin)
        x = moved.permute(0, 3, 1, 2).float() / 255 - 0.5
        return self.output(self.convolutions(x)).unflatten(0, lead)


def shifted(picture_NHWC: Tensor, shift_N2: Tensor, *, margin: int) -> Tensor:
    """Each picture cut out of itself with its border repeated ``margin`` times; ``margin`` itself moves nothing."""
    count, height, width, _ = picture_NHWC.shape
    rows = torch.arange(height, device=shift_N2.device) + shift_N2[:, :1] - margin
    columns = torch.arange(width, device=shift_N2.device) + shift_N2[:, 1:] - margin
    number = torch.arange(count, device=shift_N2.device).view(-1, 1, 1)
    return picture_NHWC[number, rows.clamp(0, height - 1).unsqueeze(2), columns.clamp(0, width - 1).unsqueeze(1)]


def _numbers(value: Tensor, space: Space) -> Tensor:
    if space.classes is not None:
        return one_hot(value, space.classes).float()
    return value.float() if space.shape else value.float().unsqueeze(-1)


def _common_size(spaces: Mapping[str, Space]) -> tuple[int, int]:
    sizes = {space.shape[:2] for space in spaces.values()}
    (height, width), *others = sorted(sizes)
    if others:
        raise ReverieError(f"the pictures {', '.join(sorted(spaces))} differ in size: choose some by `keys`.")
    if _end(min(height, width)) < 1:
        raise ReverieError(f"pictures of {height}x{width} are too small for the four convolutions: at least 39 a side.")
    return height, width


def _end(size: int) -> int:
    for kernel, stride in ((7, 2), (5, 2), (3, 2), (3, 1)):
        size = (size - kernel) // stride + 1
    return size
