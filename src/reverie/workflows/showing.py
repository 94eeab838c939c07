"""What else a workflow can show of itself after an evaluation, beside what its model expected."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from torch import Tensor

from reverie.types import Observation


@runtime_checkable
class DreamsFreely(Protocol):
    """A workflow whose model goes on by itself, with its own controller."""

    def free_dreams(self, seen: Observation) -> dict[str, Tensor]:
        """Films [B, T, height, width, channels] from 0 to 1, by name, that begin where the rows [B, T] of ``seen`` do.

        Nothing is drawn from a random stream of the run and nothing is changed.
        """
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """Numbers over the time of an algorithm of its own, such as generations."""

    over: str
    """What the horizontal axis counts."""
    places: np.ndarray
    lines: Mapping[str, np.ndarray]
    spread: np.ndarray
    """Drawn as a band around the first line."""


@runtime_checkable
class HasHistory(Protocol):
    """A workflow that remembers how it came where it is."""

    def histories(self) -> dict[str, History]:
        """By name; those in which something has happened already."""
        ...
