"""Discrete values as vectors of zeros and ones."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def one_hot(value: Tensor, classes: int | tuple[int, ...]) -> Tensor:
    """Float one-hots of class indices; those of a vector's elements stand side by side on its last axis."""
    if isinstance(classes, int):
        return F.one_hot(value.long(), classes).float()
    elements = zip(value.long().unbind(-1), classes, strict=True)
    return torch.cat([F.one_hot(index, num) for index, num in elements], dim=-1).float()
