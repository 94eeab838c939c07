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


def chosen_one_hot(index: Tensor, classes: int) -> Tensor:
    """``one_hot`` of classes that were computed here: nothing checks them, for which the host would ask the device."""
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).float()


def class_counts(classes: int | tuple[int, ...]) -> list[int]:
    """Of every element; a single value is one element."""
    return [classes] if isinstance(classes, int) else list(classes)


def class_indices(vector: Tensor, classes: int | tuple[int, ...]) -> Tensor:
    """The largest place of each element: the values that ``one_hot`` makes such vectors of."""
    if isinstance(classes, int):
        return vector.argmax(-1)
    return torch.stack([part.argmax(-1) for part in vector.split(list(classes), -1)], -1)
