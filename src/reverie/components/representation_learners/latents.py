"""What a latent consists of, and the two kinds of random variables in it: classes or numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from reverie.components.networks.distributions import Normal, OneHot, kl_divergence, normal_kl_divergence
from reverie.types import require


@dataclass(kw_only=True, slots=True)
class Latent:
    """``deter`` [..., D] and ``stoch`` [..., variables, width]: one-hots of ``width`` classes, or one number each."""

    deter: Tensor
    stoch: Tensor

    @property
    def stoch_vector(self) -> Tensor:
        return self.stoch.flatten(-2)

    @property
    def feature(self) -> Tensor:
        """What heads read."""
        return torch.cat([self.deter, self.stoch_vector], -1)

    def detach(self) -> Latent:
        return Latent(deter=self.deter.detach(), stoch=self.stoch.detach())

    def flatten(self) -> Latent:
        """[B, T, ...] -> [B * T, ...], batch-major."""
        return Latent(deter=self.deter.flatten(0, 1), stoch=self.stoch.flatten(0, 1))


class VariableDistribution(Protocol):
    """One distribution per variable."""

    def entropy(self) -> Tensor: ...


class LatentKind(Protocol):
    """The random variables of a latent. Networks give ``parameter_width`` numbers for each of them."""

    @property
    def stoch(self) -> int:
        """How many variables there are."""
        ...

    @property
    def width(self) -> int:
        """Numbers that represent the value of one variable."""
        ...

    @property
    def parameter_width(self) -> int:
        """Numbers that describe the distribution of one variable."""
        ...

    def distribution(self, parameters: Tensor) -> VariableDistribution: ...

    def noise(self, shape: tuple[int, ...], device: torch.device, rng: Generator | None) -> Tensor | None:
        """What latents of this leading shape are drawn with; None without ``rng``."""
        ...

    def sample(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        """Values with gradients to ``parameters``; the most likely ones when ``noise`` is None."""
        ...

    def kl(self, posterior: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        """KL(posterior || prior) per variable, twice: with gradients to the prior only, to the posterior only."""
        ...

    def stored(self, stoch: Tensor) -> Tensor:
        """The compact form [..., variables] that a buffer keeps."""
        ...

    def restored(self, stored: Tensor) -> Tensor: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class CategoricalLatents:
    """``stoch`` one-hots of ``classes``; their gradient is that of the probabilities (straight through)."""

    stoch: int
    classes: int
    unimix: float = 0.01
    """Share of the uniform distribution in each variable."""

    def __post_init__(self) -> None:
        require("stoch of the latents", self.stoch, at_least=1)
        require("classes of the latents", self.classes, at_least=1, at_most=256)  # replay keeps a byte
        require("unimix of the latents", self.unimix, at_least=0, at_most=1)

    @property
    def width(self) -> int:
        return self.classes

    @property
    def parameter_width(self) -> int:
        return self.classes

    def distribution(self, parameters: Tensor) -> OneHot:
        return OneHot(parameters, unimix=self.unimix)

    def noise(self, shape: tuple[int, ...], device: torch.device, rng: Generator | None) -> Tensor | None:
        return None if rng is None else torch.rand(*shape, self.stoch, 1, device=device, generator=rng)

    def sample(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        distribution = self.distribution(parameters)
        return distribution.straight_through(distribution.chosen(noise))

    def kl(self, posterior: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        return kl_divergence(self.distribution(posterior), self.distribution(prior))

    def stored(self, stoch: Tensor) -> Tensor:
        return stoch.argmax(-1).to(torch.uint8)

    def restored(self, stored: Tensor) -> Tensor:
        return F.one_hot(stored.long(), self.classes).float()


@dataclass(frozen=True, kw_only=True, slots=True)
class GaussianLatents:
    """``stoch`` normal numbers with deviation softplus(x) + ``min_stddev``; samples carry gradients to both numbers."""

    stoch: int
    min_stddev: float = 0.1

    def __post_init__(self) -> None:
        require("stoch of the latents", self.stoch, at_least=1)
        require("min_stddev of the latents", self.min_stddev, at_least=0)

    @property
    def width(self) -> int:
        return 1

    @property
    def parameter_width(self) -> int:
        return 2

    def distribution(self, parameters: Tensor) -> Normal:
        mean, raw = parameters.float().split(1, -1)
        return Normal(mean, F.softplus(raw) + self.min_stddev)

    def noise(self, shape: tuple[int, ...], device: torch.device, rng: Generator | None) -> Tensor | None:
        return None if rng is None else torch.randn(*shape, self.stoch, 1, device=device, generator=rng)

    def sample(self, parameters: Tensor, noise: Tensor | None) -> Tensor:
        distribution = self.distribution(parameters)
        return distribution.mean if noise is None else distribution.mean + distribution.stddev * noise

    def kl(self, posterior: Tensor, prior: Tensor) -> tuple[Tensor, Tensor]:
        return normal_kl_divergence(self.distribution(posterior), self.distribution(prior))

    def stored(self, stoch: Tensor) -> Tensor:
        return stoch.squeeze(-1).to(torch.bfloat16)

    def restored(self, stored: Tensor) -> Tensor:
        return stored.float().unsqueeze(-1)
