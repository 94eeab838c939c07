"""How TD-MPC's probe learns: beside the agent, from what the agent made anyway, and without any way back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from reverie.components.networks.probe_decoder import ProbeDecoder
from reverie.runtime.compilation import compiled_step
from reverie.runtime.precision import Precision
from reverie.types import Metrics
from reverie.workflows.tdmpc_optimizers import TdmpcOptimizers
from reverie.workflows.tdmpc_records import Modelled

MAX_ROWS = 64
"""That one update decodes: enough for a decoder which nothing depends on, and pictures cost much."""


class ProbeTraining:
    def __init__(self, probe: ProbeDecoder, optimizers: TdmpcOptimizers, *, precision: Precision) -> None:
        self._probe, self._optimizers, self._precision = probe, optimizers, precision

    def step(
        self, obs: Mapping[str, Tensor], modelled: Modelled, *, unless: Tensor, progress: Tensor | None
    ) -> Metrics:
        """After the agent's own steps. Nothing moves where those were skipped."""
        with self._precision.applied():
            loss = self.loss(obs, modelled)
        metrics = self._optimizers.step_probe(loss, unless=unless, progress=progress)
        return {"probe/loss": loss.detach()} | metrics

    def loss(self, obs: Mapping[str, Tensor], modelled: Modelled) -> Tensor:
        return self._compiled_loss(*probed_rows(obs, modelled))

    @compiled_step
    def _compiled_loss(self, latent: Tensor, obs: dict[str, Tensor]) -> Tensor:
        return self._probe.loss(latent, obs)


def probed_rows(obs: Mapping[str, Tensor], modelled: Modelled) -> tuple[Tensor, dict[str, Tensor]]:
    """What a probe learns from: one row of each of the first sequences, and its latent, detached.

    Latents of the encoder and not of the dynamics: a decoder that saw those would learn to repair what the model gets
    wrong, and wrong dreams would look right. One row, because its neighbours look nearly the same and cost as much.
    """
    latents = torch.cat([modelled.latents[:1].detach(), modelled.next_latents.detach()])
    steps, sequences = latents.shape[:2]
    sequence = torch.arange(min(sequences, MAX_ROWS), device=latents.device)
    row = sequence % steps
    return latents[row, sequence], {key: value[row, sequence] for key, value in obs.items()}
