"""LaProp with adaptive gradient clipping: the optimiser of DreamerV3."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from reverie.runtime.flat_optimizer import MIN_EPSILON, Clipping, FlatOptimizer, Proposal, tensor_norms
from reverie.types import require


class LaProp(FlatOptimizer):
    """Clip each tensor's gradient to its weight norm, scale by the running RMS, then average with momentum."""

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
        super().__init__(parameters, learning_rate=learning_rate, warmup_updates=warmup_updates, decay=decay)
        for name, share in (("rms_decay", rms_decay), ("momentum", momentum)):
            require(f"{name} of the optimiser", share, at_least=0, at_most=1)
        require("epsilon of the optimiser", epsilon, at_least=MIN_EPSILON)
        self._clip, self._min_weight_norm = clip, min_weight_norm
        self._rms_decay, self._momentum, self._epsilon = rms_decay, momentum, epsilon

    def _clipping(self, gradients: Sequence[Tensor]) -> Clipping:
        norms = tensor_norms(gradients)
        weight_norms = tensor_norms(self._parameters)
        # Per tensor, not per unit; the floor lets zero-initialised outputs leave zero.
        limits = self._clip * weight_norms.clamp(min=self._min_weight_norm)
        factors = 1.0 / (norms / limits).clamp(min=1.0)
        return Clipping(
            factors=factors,
            metrics={
                "grad_norm": torch.linalg.vector_norm(norms),
                "grad_clipped_share": (factors < 1).float().mean(),
            },
        )

    def _scales(self, updates: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        rms_bias, momentum_bias = 1 - self._rms_decay**updates, 1 - self._momentum**updates
        return rms_bias.float(), (rate / momentum_bias).float()

    def _proposal(self, gradient: Tensor, scales: Sequence[Tensor]) -> Proposal:
        rms_bias, step_size = scales
        square = self._square.lerp(gradient.square(), 1 - self._rms_decay)
        rms = (square / rms_bias).sqrt_().add_(self._epsilon)
        mean = self._mean.lerp(gradient.div_(rms), 1 - self._momentum)
        return Proposal(change=step_size * mean, mean=mean, square=square)
