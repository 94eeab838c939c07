"""Values that were computed step after step, with gradients that are worked out for all steps at once.

Under autograd every step differentiates its own weights: a product, a conversion and a sum for each weight and step,
one small kernel after the other. Here steps know weights as constants. The same numbers are computed again for all
steps together, and only there do gradients reach weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Pull = Callable[..., Sequence[Tensor]]
"""From the gradients of values to those of what the values follow from."""


def deferred(values: Sequence[Tensor], at_once: Sequence[Tensor], pull: Pull) -> tuple[Tensor, ...]:
    """``values``, which have no graph, as functions of ``at_once``: what steps gave, computed again for all of them.

    ``pull`` gets the gradient of each value and gives that of each of ``at_once``: it knows which steps led to which.
    """
    return _Deferred.apply(pull, tuple(values), *at_once)


class _Deferred(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pull: Pull, values: tuple[Tensor, ...], *_at_once: Tensor) -> tuple[Tensor, ...]:
        ctx.pull = pull
        return values

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        assert not torch.is_grad_enabled(), "a pull has no gradients of its own"
        return (None, None, *ctx.pull(*grad_outputs))
