"""The encoder of an agent that plays several tasks: which one it is stands beside everything that is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.latent_encoder import Discount, LatentEncoder, LatentPart, Shift
from reverie.components.networks.observations import EVERY_KEY
from reverie.runtime.finite import replace_where
from reverie.types import ReverieError, Space, require

TASK, ACTION_MASK = "task", "action_mask"
"""The observations by which the environment says what is played, and which parts of an action it reads."""
_WIDTH = 0.02
"""Embeddings begin between minus this and this."""


class TaskEncoder(LatentEncoder):
    """Each task has an embedding of ``embedding_dim`` numbers, whose norm never exceeds ``max_norm``.

    The encoder reads it in place of the task's number, and every latent ends with it, so that whatever reads a latent
    knows the task as well. Dynamics must leave it as it is (their ``task_dim``).
    """

    def __init__(
        self,
        *,
        spaces: Mapping[str, Space],
        latent_dim: int,
        vectors: Callable[..., LatentPart],
        images: Callable[..., LatentPart],
        keys: Sequence[str] = EVERY_KEY,
        embedding_dim: int = 96,
        max_norm: float = 1.0,
    ) -> None:
        require("embedding_dim of the encoder", embedding_dim, at_least=1)
        require("max_norm of the encoder", max_norm, at_least=1e-6)
        tasks = _number_of_tasks(spaces)
        read = {key: space for key, space in spaces.items() if key != ACTION_MASK}
        read[TASK] = replace(read[TASK], shape=(embedding_dim,), dtype="float32", classes=None)
        super().__init__(spaces=read, latent_dim=latent_dim, vectors=vectors, images=images, keys=[*keys, TASK])
        self.tasks, self.task_dim, self._max_norm = tasks, embedding_dim, max_norm
        self.embedding = nn.Parameter(torch.empty(tasks, embedding_dim).uniform_(-_WIDTH, _WIDTH))

    def dims(self) -> dict[str, int]:
        return {"latent_dim": self.latent_dim + self.task_dim, "task_dim": self.task_dim}

    def forward(self, obs: Mapping[str, Tensor], shift: Shift) -> Tensor:
        embedding = self._embedded(obs[TASK])
        return torch.cat([super().forward({**obs, TASK: embedding}, shift), embedding], -1)

    def action_mask(self, obs: Mapping[str, Tensor]) -> Tensor | None:
        return obs[ACTION_MASK].float()

    def discount(self, discount: Discount, obs: Mapping[str, Tensor]) -> Discount:
        return discount[obs[TASK]] if isinstance(discount, Tensor) else discount

    def retold(self, latent: Tensor, obs: Mapping[str, Tensor]) -> Tensor:
        embedding = self._embedded(obs[TASK]).detach()
        return torch.cat([latent[..., : self.latent_dim], embedding.expand(*latent.shape[:-1], -1)], -1)

    @torch.no_grad()
    def settle(self, *, unless: Tensor) -> None:
        norm = self.embedding.norm(dim=-1, keepdim=True)
        shorter = self.embedding * (self._max_norm / (norm + 1e-7))
        replace_where(~unless & (norm > self._max_norm), [(self.embedding, shorter)])

    def _embedded(self, task: Tensor) -> Tensor:
        return F.embedding(task.long(), self.embedding)


def _number_of_tasks(spaces: Mapping[str, Space]) -> int:
    count = spaces[TASK].classes if TASK in spaces and ACTION_MASK in spaces else None
    if not isinstance(count, int):
        raise ReverieError(
            "the encoder TaskEncoder needs the observations `task` (a number) and `action_mask`: choose a task of the "
            f"suite multitask, or another encoder; there are {', '.join(sorted(spaces))}."
        )
    return count
