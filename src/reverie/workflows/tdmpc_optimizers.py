"""The two optimisers of TD-MPC, one after the other: the policy learns from the critic that has just moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from reverie.runtime.finite import SKIPPED
from reverie.runtime.flat_optimizer import FlatOptimizer
from reverie.types import Metrics, ReverieError
from reverie.workflows.dreamer_optimizers import trainable_parameters

_NAMES = ("model", "policy")


class TdmpcOptimizers:
    """``model`` moves everything but the policy, with one clip for all; ``policy`` the policy."""

    def __init__(self, makers: Mapping[str, Callable[..., FlatOptimizer]], modules: Mapping[str, nn.Module]) -> None:
        if makers.keys() != set(_NAMES):
            raise ReverieError(f"`optimizers` must have {' and '.join(_NAMES)}, got {', '.join(makers) or 'none'}.")
        parameters = {
            "model": trainable_parameters({name: one for name, one in modules.items() if name != "policy"}),
            "policy": trainable_parameters({"policy": modules["policy"]}),
        }
        self.by_name = {name: makers[name](parameters[name]) for name in _NAMES}

    @property
    def model(self) -> FlatOptimizer:
        return self.by_name["model"]

    def step_model(self, loss: Tensor, *, progress: Tensor | None) -> Metrics:
        """Metrics have the optimiser's name in front, but for ``skipped``."""
        return _named("model", self.model.step(loss, progress=progress))

    def step_policy(self, loss: Tensor, *, unless: Tensor, progress: Tensor | None) -> Metrics:
        """Nothing moves either ``unless`` the model did, which is 0 then; half an update would be another algorithm."""
        policy = self.by_name["policy"]
        watched = torch.where(unless.bool(), torch.full_like(loss, float("nan")), loss.detach())
        return _named("policy", policy.apply(policy.gradients(loss), watched=watched, progress=progress))


def _named(optimizer: str, metrics: Metrics) -> Metrics:
    return {key if key == SKIPPED else f"{optimizer}/{key}": value for key, value in metrics.items()}
