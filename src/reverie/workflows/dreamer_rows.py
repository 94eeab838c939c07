"""Which rows of a batch Dreamer trains on, and which latents go back into replay."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reverie.types import Batch

CONTEXT_ROWS = 1
"""Rows in front of a sequence that only supply a starting latent."""


def without_context(batch: Batch) -> Batch:
    """The rows that are trained on."""
    rows = slice(CONTEXT_ROWS, None)
    return Batch(
        obs={key: value[:, rows] for key, value in batch.obs.items()},
        reward=batch.reward[:, rows],
        is_first=batch.is_first[:, rows],
        is_last=batch.is_last[:, rows],
        is_terminal=batch.is_terminal[:, rows],
        action=batch.action[:, rows],
        stored={key: value[:, rows] for key, value in batch.stored.items()},
        index=batch.index,
    )


def unless_skipped(fresh: Mapping[str, Tensor], batch: Batch, is_skipped: Tensor) -> dict[str, Tensor]:
    """What goes back into replay: the fresh latents, or those that are there when they come from a skipped update."""
    return {
        name: torch.where(is_skipped, batch.stored[name][:, -value.shape[1] :], value) for name, value in fresh.items()
    }
