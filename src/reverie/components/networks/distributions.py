"""What a head predicts: each distribution owns its prediction, its loss and, where it acts, its sample and entropy."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

from reverie.components.networks.symlog import symexp, symlog

_HALF_LOG_TWO_PI = 0.5 * math.log(2 * math.pi)


class OneHot:
    """Categorical over the last axis of ``logits``, mixed with ``unimix`` of the uniform distribution."""

    def __init__(self, logits: Tensor, *, unimix: float = 0.0) -> None:
        self.logits = logits.float()
        self._unimix = unimix
        self._probs: Tensor | None = None
        self._log_probs: Tensor | None = None

    @property
    def probs(self) -> Tensor:
        if self._probs is None:  # by hand: the compiler stumbles over the lock in functools.cached_property
            probs, mix = self.logits.softmax(-1), self._unimix
            self._probs = torch.add(mix / probs.shape[-1], probs, alpha=1 - mix) if mix else probs
        return self._probs

    @property
    def log_probs(self) -> Tensor:
        if self._log_probs is None:
            self._log_probs = self.probs.log() if self._unimix else self.logits.log_softmax(-1)
        return self._log_probs

    def sample(self, rng: Generator | None) -> Tensor:
        """Class indices; the most likely ones when ``rng`` is None."""
        shape = (*self.logits.shape[:-1], 1)
        return self.drawn(None if rng is None else torch.rand(shape, device=self.logits.device, generator=rng))

    def drawn(self, noise: Tensor | None) -> Tensor:
        """``sample`` with uniform ``noise`` [..., 1] that was drawn before."""
        return self.chosen(noise)

    def chosen(self, point: Tensor | None) -> Tensor:
        """The classes at which the probabilities, added up, pass ``point`` [..., 1]; the most likely ones at None."""
        probs = self.probs.detach()
        return probs.argmax(-1) if point is None else passed_at(probs, point)

    def straight_through(self, index: Tensor) -> Tensor:
        """The one-hot of ``index`` whose gradient is that of the probabilities."""
        hard = torch.zeros_like(self.probs).scatter_(-1, index.unsqueeze(-1), 1.0)
        # The bracket is exactly zero, so the value stays an exact one-hot.
        return hard + (self.probs - self.probs.detach()) if torch.is_grad_enabled() else hard

    def vector(self, index: Tensor) -> Tensor:
        """What a network reads of a chosen class, with gradients to the policy."""
        return self.straight_through(index)

    def log_prob(self, index: Tensor) -> Tensor:
        return self.log_probs.gather(-1, index.unsqueeze(-1)).squeeze(-1)

    def loss(self, index: Tensor) -> Tensor:
        return -self.log_prob(index)

    def entropy(self) -> Tensor:
        return -(self.probs * self.log_probs).sum(-1)


class OneHots:
    """Independent categoricals, one for each element of a vector; ``logits`` holds them side by side."""

    def __init__(self, logits: Tensor, classes: Sequence[int], *, unimix: float = 0.0) -> None:
        self.elements = [OneHot(part, unimix=unimix) for part in logits.split(list(classes), dim=-1)]

    def sample(self, rng: Generator | None) -> Tensor:
        """One class index per element; the most likely ones when ``rng`` is None."""
        return torch.stack([one.sample(rng) for one in self.elements], -1)

    def drawn(self, noise: Tensor | None) -> Tensor:
        """``sample`` with uniform ``noise`` [..., elements] that was drawn before."""
        points = [None] * len(self.elements) if noise is None else noise.split(1, -1)
        return torch.stack([one.drawn(point) for one, point in zip(self.elements, points, strict=True)], -1)

    def vector(self, index: Tensor) -> Tensor:
        """One-hots side by side."""
        return torch.cat([one.vector(index[..., i]) for i, one in enumerate(self.elements)], -1)

    def log_prob(self, index: Tensor) -> Tensor:
        """Summed over the elements, as a vector's squared error is."""
        return torch.stack([one.log_prob(index[..., i]) for i, one in enumerate(self.elements)]).sum(0)

    def loss(self, index: Tensor) -> Tensor:
        return -self.log_prob(index)

    def entropy(self) -> Tensor:
        return torch.stack([one.entropy() for one in self.elements]).sum(0)


class Normal:
    """Independent normals over the last axis. Samples are not clipped: whoever has bounds applies them.

    With ``is_scaled_back``, a sample beyond -1 or 1 is divided by its size.
    """

    def __init__(self, mean: Tensor, stddev: Tensor, *, is_scaled_back: bool = False) -> None:
        self.mean, self.stddev = mean.float(), stddev.float()
        self._is_scaled_back = is_scaled_back

    def sample(self, rng: Generator | None) -> Tensor:
        """A differentiable function of the parameters. The mean, the most likely value, when ``rng`` is None."""
        return self.drawn(None if rng is None else standard_normal(self.mean, rng))

    def drawn(self, noise: Tensor | None) -> Tensor:
        """``sample`` with standard normal ``noise`` that was drawn before."""
        if noise is None:
            return self.mean
        value = self.mean + self.stddev * noise
        return value / value.detach().abs().clamp(min=1.0) if self._is_scaled_back else value

    def vector(self, value: Tensor) -> Tensor:
        return value

    def log_prob(self, value: Tensor) -> Tensor:
        distance = (value - self.mean) / self.stddev
        return -(distance.square() / 2 + self.stddev.log() + _HALF_LOG_TWO_PI).sum(-1)

    def entropy(self) -> Tensor:
        return (self.stddev.log() + (_HALF_LOG_TWO_PI + 0.5)).sum(-1)


def standard_normal(like: Tensor, rng: Generator) -> Tensor:
    return torch.randn(like.shape, device=like.device, generator=rng)


def passed_at(probs: Tensor, point: Tensor) -> Tensor:
    """The classes at which ``probs`` [..., classes], added up, pass ``point`` [..., 1]."""
    if torch.compiler.is_compiling():  # the compiler's sum is deterministic and melts into its neighbours
        return (probs.cumsum(-1)[..., :-1] <= point).sum(-1)
    return (full_product(probs, _running_sum(probs.shape[-1], probs.device)) <= point).sum(-1)


def full_product(one: Tensor, other: Tensor) -> Tensor:
    """Sums of probabilities need all their digits, whatever networks compute in."""
    if not torch.is_autocast_enabled(one.device.type):  # asking is cheap, the context is not
        return one @ other
    with torch.autocast(one.device.type, enabled=False):
        return one @ other


@cache
def _running_sum(classes: int, device: torch.device) -> Tensor:
    """Multiplying by it gives the sums of the first 1 to classes - 1 probabilities.

    A product, because cumsum has no deterministic kernel on a GPU; without the last sum, because rounding in it could
    lead beyond the last class.
    """
    return torch.ones(classes, classes - 1, device=device).triu_()


def kl_divergence(one: OneHot, other: OneHot) -> tuple[Tensor, Tensor]:
    """KL(one || other) of each variable, twice: with gradients to ``other`` only, and to ``one`` only."""
    fixed_one = one.probs.detach(), one.log_probs.detach()
    to_other = (fixed_one[0] * (fixed_one[1] - other.log_probs)).sum(-1)
    to_one = (one.probs * (one.log_probs - other.log_probs.detach())).sum(-1)
    return to_other, to_one


def normal_kl_divergence(one: Normal, other: Normal) -> tuple[Tensor, Tensor]:
    """The same for independent normals, summed over the last axis."""
    fixed_one, fixed_other = (Normal(normal.mean.detach(), normal.stddev.detach()) for normal in (one, other))
    return _normal_kl(fixed_one, other), _normal_kl(one, fixed_other)


def _normal_kl(one: Normal, other: Normal) -> Tensor:
    squares = one.stddev.square() + (one.mean - other.mean).square()
    return (other.stddev.log() - one.stddev.log() + squares / (2 * other.stddev.square()) - 0.5).sum(-1)


def symexp_bins(count: int) -> Tensor:
    """``count`` values, symmetric around zero, spaced exponentially up to symexp(20)."""
    half = symexp(torch.linspace(-20, 0, (count + 1) // 2))
    mirrored = -half.flip(0)
    return torch.cat([half, mirrored[1:] if count % 2 else mirrored])


def symlog_bins(count: int) -> Tensor:
    """``count`` values of equal distance from -20 to 20; rounding leaves them exactly symmetric around zero."""
    bins = torch.linspace(-20, 20, count)
    return (bins - bins.flip(0)) / 2


class TwoHot:
    """A scalar as a distribution over fixed bins. The target stays raw: only the bins are spaced exponentially."""

    def __init__(self, logits: Tensor, bins: Tensor) -> None:
        self._log_probs = logits.float().log_softmax(-1)
        self._bins = bins

    def mean(self) -> Tensor:
        # Pairing the halves makes the prediction of zero logits exactly zero, though the outer bins are huge.
        probs, count = self._log_probs.exp(), self._bins.shape[0]
        parts = [count // 2, count % 2, count // 2]
        if torch.compiler.is_compiling():
            # A compiler fuses one product of a pair with their sum and rounds only the other: subtract beforehand.
            low, _, high = probs.split(parts, dim=-1)
            return ((high - low.flip(-1)) * self._bins[count - count // 2 :]).sum(-1)
        low, centre, high = (probs * self._bins).split(parts, dim=-1)
        return (low.flip(-1) + high).sum(-1) + centre.sum(-1)

    def loss(self, target: Tensor) -> Tensor:
        """Cross entropy to the two bins around ``target``, weighted linearly by distance."""
        count = self._bins.shape[0]
        above = torch.searchsorted(self._bins, target.contiguous(), right=True)
        below = (above - 1).clamp(min=0)
        above = above.clamp(max=count - 1)
        gap_below, gap_above = (self._bins[below] - target).abs(), (self._bins[above] - target).abs()
        # Beyond an end, both neighbours are the same bin. A target that is no number must not pass for a large one.
        is_outside = (below == above) & target.isfinite()
        gap_below = torch.where(is_outside, torch.ones_like(gap_below), gap_below)
        gap_above = torch.where(is_outside, torch.ones_like(gap_above), gap_above)
        places, shares = torch.stack([below, above], -1), torch.stack([gap_above, gap_below], -1)
        return -(self._at(places) * shares).sum(-1) / (gap_below + gap_above)

    def _at(self, places: Tensor) -> Tensor:
        if not torch.compiler.is_compiling():
            return self._log_probs.gather(-1, places)
        # On a GPU the gradient of ``gather`` has one order only after a sort; this is a part of what stands around it.
        is_there = places.unsqueeze(-1) == torch.arange(self._bins.shape[0], device=places.device)
        return torch.where(is_there, self._log_probs.unsqueeze(-2), 0.0).sum(-1)


class SymlogTwoHot:
    """A scalar as a distribution over bins of equal width in symlog space, where the target is brought too."""

    def __init__(self, logits: Tensor, bins: Tensor) -> None:
        self._squashed = TwoHot(logits, bins)

    def mean(self) -> Tensor:
        """What the mean in symlog space stands for."""
        return symexp(self._squashed.mean())

    def loss(self, target: Tensor) -> Tensor:
        return self._squashed.loss(symlog(target))


class UnitNormal:
    """Normals with deviation 1 around a prediction. Their constant, 0.919 for each number, is left out of the loss."""

    def __init__(self, prediction: Tensor, *, is_vector: bool) -> None:
        self._prediction, self._is_vector = prediction.float(), is_vector

    def mean(self) -> Tensor:
        return self._prediction

    def loss(self, target: Tensor) -> Tensor:
        """Half the squared error, summed over the last axis of vectors. A single number needs no axis of its own."""
        half = (self._prediction - target.float().view_as(self._prediction)).square() / 2
        return half.sum(-1) if self._is_vector else half


class Binary:
    """A probability, trained on targets between 0 and 1."""

    def __init__(self, logit: Tensor) -> None:
        self._logit = logit.float()

    def mean(self) -> Tensor:
        return self._logit.sigmoid()

    def loss(self, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(self._logit, target, reduction="none")


class Fixed:
    """A known number: predicted everywhere, and never wrong."""

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def mean(self) -> Tensor:
        return self._value

    def loss(self, target: Tensor) -> Tensor:
        return torch.zeros_like(target)


class SymlogMse:
    """A vector predicted in symlog space: squared error summed over its dimensions, without a factor of one half."""

    def __init__(self, prediction: Tensor) -> None:
        self._prediction = prediction.float()

    def mean(self) -> Tensor:
        return symexp(self._prediction)

    def loss(self, target: Tensor) -> Tensor:
        """A single number needs no axis of its own."""
        return (self._prediction - symlog(target.float()).view_as(self._prediction)).square().sum(-1)


class ImageMse:
    """Pictures [..., H, W, C] between 0 and 1: squared error, times ``weight``, summed over all their numbers."""

    def __init__(self, prediction: Tensor, *, weight: float = 1.0) -> None:
        self._prediction, self._weight = prediction.float(), weight

    def mean(self) -> Tensor:
        return self._prediction

    def loss(self, target: Tensor) -> Tensor:
        """``target`` is uint8."""
        return self._weight * (self._prediction - target.float() / 255).square().sum((-3, -2, -1))
