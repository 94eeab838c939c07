"""What all optimisers share: parameters as views of one flat vector, the learning rate, and memory that can be saved.

One vector, so that a step is a dozen operations whatever the number of layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.runtime.compilation import compiled_step, steps_are_compiled
from reverie.runtime.finite import SKIPPED, all_finite, replace_where
from reverie.runtime.flat_layout import FlatLayout, Piece
from reverie.types import Metrics, State, require

MIN_EPSILON = 1e-30
"""A gradient that is zero is divided by it, such as those of what only fills up the flat vector."""


@dataclass(kw_only=True, slots=True)
class Clipping:
    """How gradients are clipped."""

    factors: Tensor
    """What they are multiplied with: one number for each parameter."""
    metrics: Metrics
    """With ``grad_norm``, the norm of all gradients before clipping."""


class Proposal(NamedTuple):
    """What an optimiser would do, before anything is written."""

    change: Tensor
    """To be subtracted from the flat weights."""
    mean: Tensor
    square: Tensor


class FlatOptimizer(ABC):
    """``step`` differentiates and moves. Where several optimisers share an update, all of them take their ``gradients``
    before the first of them moves (``apply``): gradients belong to the weights of the forward pass.

    ``decay`` is the share of the learning rate that is gone when a phase's progress reaches 1; no paper has it.
    """

    def __init__(
        self, parameters: Mapping[str, nn.Parameter], *, learning_rate: float, warmup_updates: int, decay: float
    ) -> None:
        require("learning_rate of the optimiser", learning_rate, at_least=0)
        require("warmup_updates of the optimiser", warmup_updates, at_least=0)
        require("decay of the optimiser", decay, at_least=0, at_most=1)
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._learning_rate, self._warmup, self._decay = learning_rate, warmup_updates, decay
        self._layout = FlatLayout(self._parameters)
        self._weight = self._flattened()
        self._mean = torch.zeros_like(self._weight)
        self._square = torch.zeros_like(self._weight)
        self._updates = torch.zeros((), dtype=torch.float64, device=self._weight.device)

    def step(self, loss: Tensor, *, progress: Tensor | None = None) -> Metrics:
        """Differentiate ``loss`` and move the parameters. Parameters the loss does not reach get a zero gradient.

        When the loss, a gradient or the step itself is not finite, nothing moves, and the metric ``skipped`` is 1.
        """
        return self.apply(self.gradients(loss), watched=loss, progress=progress)

    def gradients(self, loss: Tensor) -> list[Tensor]:
        """One per parameter; zero where the loss does not reach, and for frozen parameters."""
        learning = [parameter for parameter in self._parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(loss, learning, materialize_grads=True) if learning else ())
        return [next(found) if one.requires_grad else torch.zeros_like(one) for one in self._parameters]

    @torch.no_grad()
    def apply(
        self, gradients: Sequence[Tensor], *, watched: Tensor | None = None, progress: Tensor | None = None
    ) -> Metrics:
        """The one place where gradients become a change of weights. Nothing moves when a gradient, the step or
        ``watched`` (the loss, and what else must be finite) is not finite.
        """
        rate, updates = self._rate(progress), self._updates + 1
        clipping = self._clipping(gradients)
        finite = [clipping.metrics["grad_norm"], *([] if watched is None else [watched])]
        scales = self._scales(updates, rate)
        if steps_are_compiled():
            gradient = self._layout.joined(gradients)
            is_finite = self._moved_in_one(gradient, clipping.factors, self._owners, scales, finite, self._frozen())
        else:
            is_finite = self._moved(self._clipped(gradients, clipping.factors), scales, finite, self._frozen())
        replace_where(is_finite, [(self._updates, updates)])
        return clipping.metrics | {"learning_rate": rate.float(), SKIPPED: (~is_finite).float()}

    def _moved(
        self, gradient: Tensor, scales: Sequence[Tensor], watched: Sequence[Tensor], frozen: Sequence[Piece]
    ) -> Tensor:
        """Write the step, unless something about it is not finite. Returns whether it was written."""
        proposed = self._proposal(gradient, scales)
        for start, stop in frozen:
            proposed.change[start:stop] = 0  # momentum from before must not move it either
        is_finite = all_finite(proposed.change, *watched)
        moved = (self._square, proposed.square), (self._mean, proposed.mean)
        replace_where(is_finite, [*moved, (self._weight, self._weight - proposed.change)])
        return is_finite

    @compiled_step
    def _moved_in_one(
        self,
        gradient: Tensor,
        factors: Tensor,
        owners: Tensor,
        scales: Sequence[Tensor],
        watched: Sequence[Tensor],
        frozen: Sequence[Piece],
    ) -> Tensor:
        """The same in as few passes over memory as the compiler can: a large model's step is nothing else."""
        return self._moved(gradient * factors[owners.int()], scales, watched, frozen)

    def _clipped(self, gradients: Sequence[Tensor], factors: Tensor) -> Tensor:
        return self._layout.joined([one * factor for one, factor in zip(gradients, factors.unbind(), strict=True)])

    @cached_property
    def _owners(self) -> Tensor:
        """Which parameter each number of the flat vector belongs to."""
        numbers = torch.arange(len(self._parameters), dtype=torch.int16, device=self._weight.device)
        spans = torch.tensor(self._layout.spans, device=numbers.device)
        return numbers.repeat_interleave(spans, output_size=self._layout.size)

    def _frozen(self) -> list[Piece]:
        """What does not learn now."""
        pieces = zip(self._parameters, self._layout.pieces, strict=True)
        return [piece for parameter, piece in pieces if not parameter.requires_grad]

    @abstractmethod
    def _clipping(self, gradients: Sequence[Tensor]) -> Clipping: ...

    @abstractmethod
    def _scales(self, updates: Tensor, rate: Tensor) -> Sequence[Tensor]:
        """The numbers of this update, of which ``updates`` is the count; ``rate`` is the learning rate."""

    @abstractmethod
    def _proposal(self, gradient: Tensor, scales: Sequence[Tensor]) -> Proposal:
        """``gradient`` is clipped. Nothing is changed yet."""

    def _rate(self, progress: Tensor | None) -> Tensor:
        warmup = self._updates / self._warmup if self._warmup else torch.ones_like(self._updates)
        rate = self._learning_rate * warmup.clamp(max=1.0)  # the very first update of a warm-up has rate 0
        if self._decay:
            if progress is None:
                raise ValueError("a decaying learning rate needs the phase's progress")
            rate = rate * (1 - self._decay * progress)
        return rate

    def memory(self) -> list[Tensor]:
        """Copies of the weights and of all that a step changes, for ``take_back``."""
        return [one.clone() for one in self._changing()]

    @torch.no_grad()
    def take_back(self, memory: Sequence[Tensor], *, where: Tensor) -> None:
        """Everything as it was in ``memory``, bit for bit, where a later part of the same update was not finite."""
        replace_where(where, zip(self._changing(), memory, strict=True))

    def _changing(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self._weight, self._mean, self._square, self._updates

    def get_state(self) -> State:
        return {
            "updates": self._updates.clone(),
            "mean": self._by_name(self._mean),
            "square": self._by_name(self._square),
        }

    def set_state(self, state: State) -> None:
        self._updates.copy_(state["updates"])
        for flat, saved in ((self._mean, state["mean"]), (self._square, state["square"])):
            for name, place in zip(self._names, self._layout.places(flat), strict=True):
                place.copy_(saved[name].view_as(place))

    def _by_name(self, flat: Tensor) -> State:
        places = zip(self._names, self._layout.places(flat), strict=True)
        return {name: place.clone() for name, place in places}

    def _flattened(self) -> Tensor:
        """One vector that holds all parameters; each parameter becomes a view of its piece."""
        flat = self._layout.joined([parameter.detach() for parameter in self._parameters])
        for parameter, place in zip(self._parameters, self._layout.places(flat), strict=True):
            parameter.data = place
        return flat


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor, as one vector. Asked for at once: on a GPU that is a few kernels for all."""
    return torch.stack(torch.ops.aten._foreach_norm.Scalar(list(tensors), 2))
