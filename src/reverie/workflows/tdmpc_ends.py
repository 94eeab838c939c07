"""How well ends of episodes are foreseen."""

from __future__ import annotations

import torch
from torch import Tensor

_TINY = 1e-9


def end_statistics(chance: Tensor, is_terminal: Tensor) -> dict[str, Tensor]:
    """The share of ends among transitions, and the F1 score of predictions above one half."""
    is_end, is_expected = is_terminal > 0.5, chance > 0.5
    hits = (is_expected & is_end).sum()
    recall = hits / (is_end.sum() + _TINY)
    precision = hits / (is_expected.sum() + _TINY)
    f1 = 2 * precision * recall / (precision + recall + _TINY)
    return {"termination_rate": is_end.float().mean(), "termination_f1": f1.to(torch.float32)}
