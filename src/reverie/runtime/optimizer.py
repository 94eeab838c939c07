"""LaProp with adaptive gradient clipping: the optimiser of DreamerV3, over one flat vector.

All parameters become views of a single tensor, so that a step is a dozen operations whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from reverie.runtime.finite import SKIPPED, all_finite, replace_where
from reverie.types import Metrics, State, require


class LaProp:
    """Clip each tensor's gradient to its weight norm, scale by the running RMS, then average with momentum.

    ``decay`` is the share of the learning rate that is gone when a phase's progress reaches 1; the paper has none.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        *,
        learning_rate: float = 4e-5,
        warmup_updates: int = 1000,
        decay: float = 0.0,
        clip: float = 0.3,
        min_weight_norm: float = 1e-3,
        rms_decay: float = 0.999,
        momentum: float = 0.9,
        epsilon: float = 1e-20,
    ) -> None:
        require("learning_rate of the optimiser", learning_rate, at_least=0)
        require("warmup_updates of the optimiser", warmup_updates, at_least=0)
        for name, share in (("decay", decay), ("rms_decay", rms_decay), ("momentum", momentum)):
            require(f"{name} of the optimiser", share, at_least=0, at_most=1)
        self._names = list(parameters)
        self._parameters = list(parameters.values())
        self._learning_rate, self._warmup, self._decay = learning_rate, warmup_updates, decay
        self._clip, self._min_weight_norm = clip, min_weight_norm
        self._rms_decay, self._momentum, self._epsilon = rms_decay, momentum, epsilon
        self._weight = _flattened(self._parameters)
        self._mean = torch.zeros_like(self._weight)
        self._square = torch.zeros_like(self._weight)
        device = self._weight.device
        self._lengths = [parameter.numel() for parameter in self._parameters]
        self._sizes = torch.tensor(self._lengths, device=device)
        self._updates = torch.zeros((), dtype=torch.float64, device=device)

    def step(self, loss: Tensor, *, progress: Tensor | None = None) -> Metrics:
        """Differentiate ``loss`` and move the parameters. Parameters the loss does not reach get a zero gradient.

        When the loss, a gradient or the step itself is not finite, nothing moves, and the metric ``skipped`` is 1.
        """
        learning = [parameter for parameter in self._parameters if parameter.requires_grad]
        found = iter(torch.autograd.grad(loss, learning, materialize_grads=True))
        gradients = [next(found) if one.requires_grad else torch.zeros_like(one) for one in self._parameters]
        return self.apply(gradients, watched=loss, progress=progress)

    @torch.no_grad()
    def apply(
        self, gradients: Sequence[Tensor], *, watched: Tensor | None = None, progress: Tensor | None = None
    ) -> Metrics:
        """Move the parameters, unless a gradient, the step or ``watched`` (the loss) is not finite."""
        norms = tensor_norms(gradients)
        weight_norms = tensor_norms(self._parameters)
        # Per tensor, not per unit; the floor lets zero-initialised outputs leave zero.
        limits = self._clip * weight_norms.clamp(min=self._min_weight_norm)
        factors = 1.0 / (norms / limits).clamp(min=1.0)
        gradient = torch.cat([value.reshape(-1) for value in gradients])
        gradient *= torch.repeat_interleave(factors, self._sizes, output_size=gradient.numel())

        rate = self._rate(progress)
        updates = self._updates + 1
        rms_bias, momentum_bias = 1 - self._rms_decay**updates, 1 - self._momentum**updates
        square = self._square.lerp(gradient.square(), 1 - self._rms_decay)
        rms = (square / rms_bias.float()).sqrt_().add_(self._epsilon)
        mean = self._mean.lerp(gradient.div_(rms), 1 - self._momentum)
        change = (rate / momentum_bias).float() * mean
        for part, parameter in zip(change.split(self._lengths), self._parameters, strict=True):
            if not parameter.requires_grad:
                part.zero_()  # frozen: momentum from before must not move it either
        is_finite = all_finite(norms, change, *([] if watched is None else [watched]))
        moved = (self._updates, updates), (self._square, square), (self._mean, mean)
        replace_where(is_finite, [*moved, (self._weight, self._weight - change)])
        return {
            "grad_norm": torch.linalg.vector_norm(norms),
            "grad_clipped_share": (factors < 1).float().mean(),
            "learning_rate": rate.float(),
            SKIPPED: (~is_finite).float(),
        }

    def _rate(self, progress: Tensor | None) -> Tensor:
        """The learning rate of the next update."""
        warmup = self._updates / self._warmup if self._warmup else torch.ones_like(self._updates)
        rate = self._learning_rate * warmup.clamp(max=1.0)  # the very first update has rate 0
        if self._decay:
            if progress is None:
                raise ValueError("a decaying learning rate needs the phase's progress")
            rate = rate * (1 - self._decay * progress)
        return rate

    def get_state(self) -> State:
        return {
            "updates": self._updates.clone(),
            "mean": self._by_name(self._mean),
            "square": self._by_name(self._square),
        }

    def set_state(self, state: State) -> None:
        self._updates.copy_(state["updates"])
        for flat, saved in ((self._mean, state["mean"]), (self._square, state["square"])):
            flat.copy_(torch.cat([saved[name].reshape(-1) for name in self._names]))

    def _by_name(self, flat: Tensor) -> State:
        parts = flat.split(self._lengths)
        shapes = [parameter.shape for parameter in self._parameters]
        return {name: part.view(shape).clone() for name, part, shape in zip(self._names, parts, shapes, strict=True)}


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The Euclidean norm of each tensor, as one vector."""
    return torch.stack([torch.linalg.vector_norm(tensor) for tensor in tensors])


def _flattened(parameters: list[nn.Parameter]) -> Tensor:
    """One vector that holds all parameters; each parameter becomes a view of its piece."""
    flat = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
    for parameter, piece in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.data = piece.view(parameter.shape)
    return flat
