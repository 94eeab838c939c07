"""The optimisers of TD-MPC, one after the other: the policy learns from the critic that has just moved."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from reverie.runtime.finite import SKIPPED
from reverie.runtime.flat_optimizer import FlatOptimizer
from reverie.types import Metrics, ReverieError
from reverie.workflows.dreamer_optimizers import trainable_parameters

_AGENT = ("model", "policy")
PROBE = "probe"


class TdmpcOptimizers:
    """``model`` moves everything but the policy, with one clip for all; ``policy`` the policy; ``probe`` the decoder
    that people look through, where there is one.
    """

    def __init__(self, makers: Mapping[str, Callable[..., FlatOptimizer]], modules: Mapping[str, nn.Module]) -> None:
        names = (*_AGENT, PROBE) if PROBE in modules else _AGENT
        if not set(names) <= makers.keys() <= {*_AGENT, PROBE}:
            raise ReverieError(f"`optimizers` must have {' and '.join(names)}, got {', '.join(makers) or 'none'}.")
        self.by_name = {name: makers[name](trainable_parameters(_moved_by(name, modules))) for name in names}

    @property
    def model(self) -> FlatOptimizer:
        return self.by_name["model"]

    def step_model(self, loss: Tensor, *, progress: Tensor | None) -> Metrics:
        """Metrics have the optimiser's name in front, but for ``skipped``."""
        return _named("model", self.model.step(loss, progress=progress))

    def step_policy(self, loss: Tensor, *, unless: Tensor, progress: Tensor | None) -> Metrics:
        """Nothing moves either ``unless`` the model did, which is 0 then; half an update would be another algorithm."""
        return _named("policy", self._stepped("policy", loss, unless=unless, progress=progress))

    def step_probe(self, loss: Tensor, *, unless: Tensor, progress: Tensor | None) -> Metrics:
        """Nothing moves where the update was skipped. When only the probe is not finite, that is no skipped update."""
        metrics = self._stepped(PROBE, loss, unless=unless, progress=progress)
        return _named(PROBE, metrics | {"skipped_share": metrics.pop(SKIPPED)})

    def _stepped(self, name: str, loss: Tensor, *, unless: Tensor, progress: Tensor | None) -> Metrics:
        optimizer = self.by_name[name]
        watched = torch.where(unless.bool(), torch.full_like(loss, float("nan")), loss.detach())
        return optimizer.apply(optimizer.gradients(loss), watched=watched, progress=progress)


def _moved_by(optimizer: str, modules: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    if optimizer != "model":
        return {optimizer: modules[optimizer]}
    return {name: one for name, one in modules.items() if name not in ("policy", PROBE)}


def _named(optimizer: str, metrics: Metrics) -> Metrics:
    return {key if key == SKIPPED else f"{optimizer}/{key}": value for key, value in metrics.items()}
