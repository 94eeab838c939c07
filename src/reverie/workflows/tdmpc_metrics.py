"""What an update of TD-MPC says of itself."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.types import Metrics
from reverie.workflows.tdmpc_records import Improved, Modelled, Transitions

_TINY = 1e-9


def update_metrics(seen: Transitions, modelled: Modelled, improved: Improved, total: Tensor) -> Metrics:
    metrics = {f"loss/{name}": loss.detach() for name, loss in modelled.losses.items()}
    metrics |= {"loss/policy": improved.loss.detach(), "loss/total": total.detach()}
    metrics |= {"entropy": improved.entropy, "entropy_bonus": improved.bonus, "value_mean": improved.value}
    metrics |= {"return_scale": improved.scale, "target_mean": modelled.targets.mean()}
    if modelled.end_logit is not None:
        metrics |= end_statistics(modelled.end_logit[-1].detach().sigmoid(), seen.is_terminal[-1])
    return metrics


def end_statistics(chance: Tensor, is_terminal: Tensor) -> dict[str, Tensor]:
    """The share of ends among transitions, and the F1 score of predictions above one half."""
    is_end, is_expected = is_terminal > 0.5, chance > 0.5
    hits = (is_expected & is_end).sum()
    recall = hits / (is_end.sum() + _TINY)
    precision = hits / (is_expected.sum() + _TINY)
    f1 = 2 * precision * recall / (precision + recall + _TINY)
    return {"termination_rate": is_end.float().mean(), "termination_f1": f1.to(torch.float32)}
