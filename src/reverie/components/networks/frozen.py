"""Gradients that go through a network and leave nothing in it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def frozen(modules: Iterable[nn.Module]) -> Iterator[None]:
    """What is computed inside has gradients to its inputs, but none to the parameters of ``modules``."""
    learning = [one for module in modules for one in module.parameters() if one.requires_grad]
    for parameter in learning:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in learning:
            parameter.requires_grad_(True)
