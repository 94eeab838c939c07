"""World Models for people: films of dreams, and how fitness went over generations."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.components.controllers.evolution import HISTORY, Evolution
from reverie.components.controllers.linear_controller import LinearController
from reverie.components.dreams.latent_dream import LatentDream
from reverie.components.dynamics.mdn_rnn import MdnRnn, Memory
from reverie.components.representation_learners.conv_vae import ConvVae
from reverie.workflows.showing import History

_SEED = 0
"""Of the chances in shown dreams: the same in all evaluations, so that what changes is the model."""


def dream_film(
    vae: ConvVae, rnn: MdnRnn, controller: LinearController, starts_BD: Tensor, *, temperature: float, length: int
) -> Tensor:
    """[B, length, height, width, channels] on the CPU. A dream that has ended stands still."""
    rng = torch.Generator(starts_BD.device).manual_seed(_SEED)
    dream = LatentDream(rnn, vae=vae, rng=rng, temperature=temperature, limit=length)
    row, frames = dream.reset(starts_BD), []
    weights = controller.weights.expand(len(starts_BD), -1)
    for _ in range(length):
        frames.append(row.obs[vae.key])
        memory = Memory(hidden=row.stored["hidden"], cell=row.stored["cell"])
        action = controller.actions(weights, row.stored["latent"], memory)
        row = dream.step(controller.vector(action))
    return torch.stack(frames, 1).cpu()


def fitness_history(evolution: Evolution) -> History:
    """Mean, best and worst of every generation, and the deviation among its members."""
    columns = dict(zip(HISTORY, evolution.history().T, strict=True))
    lines = {name: columns[name] for name in ("mean", "best", "worst")}
    return History(over="generations", places=columns["generation"], lines=lines, spread=columns["deviation"])
