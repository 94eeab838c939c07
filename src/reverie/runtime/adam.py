"""Adam with a global clip and decoupled weight decay: the optimiser of the earlier Dreamers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from reverie.runtime.flat_layout import Piece
from reverie.runtime.flat_optimizer import MIN_EPSILON, Clipping, FlatOptimizer, Proposal, tensor_norms
from reverie.types import ReverieError, require


class Adam(FlatOptimizer):
    """Clip the norm of all gradients together to ``clip``, then Adam.

    ``weight_decay`` is the share of each weight that an update takes away, whatever the learning rate: so does the code
    of DreamerV2, while torch's AdamW multiplies it by the rate. ``rate_scales`` multiplies the learning rate of
    modules, by their name in the configuration, or of parts of them, nested as they are. ``value_clip`` is the largest
    size of a single number of a gradient, before anything else looks at it.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        learning_rate: float,
        warmup_updates: int = 0,
        decay: float = 0.0,
        clip: float = 100.0,
        mean_decay: float = 0.9,
        square_decay: float = 0.999,
        epsilon: float = 1e-8,
        weight_decay: float = 0.0,
        rate_scales: Mapping[str, float | Mapping[str, float]] | None = None,
        value_clip: float | None = None,
    ) -> None:
        super().__init__(parameters, learning_rate=learning_rate, warmup_updates=warmup_updates, decay=decay)
        for name, share in (
            ("mean_decay", mean_decay),
            ("square_decay", square_decay),
            ("weight_decay", weight_decay),
        ):
            require(f"{name} of the optimiser", share, at_least=0, at_most=1)
        scales = dict(_by_path(rate_scales or {}))
        for module, scale in scales.items():
            require(f"rate_scales.{module} of the optimiser", scale, at_least=0)
        require("clip of the optimiser", clip, at_least=1e-6)
        require("epsilon of the optimiser", epsilon, at_least=MIN_EPSILON)
        if value_clip is not None:
            require("value_clip of the optimiser", value_clip, at_least=1e-12)
        self._value_clip = value_clip
        self._clip, self._epsilon, self._weight_decay = clip, epsilon, weight_decay
        self._mean_decay, self._square_decay = mean_decay, square_decay
        self._rate_scales = [(self._piece_of(module), scale) for module, scale in scales.items()]

    def _piece_of(self, module: str) -> Piece:
        """Where the parameters of a module lie, one behind the other; the gaps between them are zero and stay so."""
        places = zip(self._names, self._layout.pieces, strict=True)
        found = [piece for name, piece in places if name.startswith(f"{module}.")]
        if not found:
            modules = ", ".join(dict.fromkeys(name.partition(".")[0] for name in self._names))
            raise ReverieError(f"`rate_scales` of the optimiser names {module}, but it moves {modules}.")
        return found[0][0], found[-1][1]

    def gradients(self, loss: Tensor) -> list[Tensor]:
        found = super().gradients(loss)
        limit = self._value_clip
        # An infinite number stays what it is: the step must be skipped, not made from it.
        return found if limit is None else [torch.where(one.isinf(), one, one.clamp(-limit, limit)) for one in found]

    def _clipping(self, gradients: Sequence[Tensor]) -> Clipping:
        norm = torch.linalg.vector_norm(tensor_norms(gradients))
        return Clipping(
            factors=(self._clip / norm.clamp(min=self._clip)).expand(len(gradients)),
            metrics={"grad_norm": norm, "grad_clipped_share": (norm > self._clip).float()},
        )

    def _scales(self, updates: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        mean_bias, square_bias = 1 - self._mean_decay**updates, 1 - self._square_decay**updates
        return square_bias.float(), (rate / mean_bias).float()

    def _proposal(self, gradient: Tensor, scales: Sequence[Tensor]) -> Proposal:
        square_bias, step_size = scales
        mean = self._mean.lerp(gradient, 1 - self._mean_decay)
        square = self._square.lerp(gradient.square(), 1 - self._square_decay)
        scale = (square / square_bias).sqrt_().add_(self._epsilon)
        change = step_size * mean / scale
        for (start, stop), share in self._rate_scales:
            change[start:stop] *= share
        if self._weight_decay:
            change = torch.add(change, self._weight, alpha=self._weight_decay)
        return Proposal(change=change, mean=mean, square=square)


def _by_path(scales: Mapping[str, float | Mapping[str, float]]) -> Iterator[tuple[str, float]]:
    for module, scale in scales.items():
        if isinstance(scale, Mapping):
            yield from ((f"{module}.{part}", share) for part, share in scale.items())
        else:
            yield module, scale
