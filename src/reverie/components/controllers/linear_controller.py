"""A controller so small that its weights can be evolved: one linear layer on a latent and a memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from reverie.components.dynamics.mdn_rnn import Memory
from reverie.components.networks.one_hot import one_hot
from reverie.types import ReverieError, Space


class LinearController(nn.Module):
    """Acts for N environments with one vector of weights each. ``weights`` are those that it acts with by itself.

    Continuous actions are squashed by tanh. Those in ``one_sided`` are pushed in one direction only: what is below 0
    counts as the action's least value, -1, and 0 to 1 is spread over its whole range. Of discrete actions the one
    with the largest output is taken.
    """

    weights: Tensor

    def __init__(
        self,
        *,
        space: Space,
        latent_dim: int,
        memory_dim: int,
        reads_cell: bool = False,
        one_sided: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if isinstance(space.classes, tuple) or len(space.shape) != (0 if space.is_discrete else 1):
            raise ReverieError(
                "the linear controller has one discrete action or one vector of numbers, got the shape "
                f"{list(space.shape)}: choose another task."
            )
        for index in one_sided:
            if space.is_discrete or not 0 <= index < space.dim:
                raise ReverieError(f"`controller.linear.one_sided` names action {index}, which this task has not.")
        self.space = space
        self._reads_cell = reads_cell
        self._inputs = latent_dim + memory_dim * (2 if reads_cell else 1)
        is_one_sided = torch.tensor([index in one_sided for index in range(space.dim)])
        self.register_buffer("is_one_sided", is_one_sided, persistent=False)
        self.register_buffer("weights", torch.zeros(self.parameter_count))

    is_one_sided: Tensor

    @property
    def parameter_count(self) -> int:
        return (self._inputs + 1) * self.space.dim

    def actions(self, weights_NP: Tensor, latent: Tensor, memory: Memory) -> Tensor:
        """One action per environment, as the environment takes it."""
        parts = [latent, memory.hidden, *([memory.cell] if self._reads_cell else [])]
        layer = weights_NP.view(len(weights_NP), self.space.dim, self._inputs + 1)
        outputs = torch.einsum("nai,ni->na", layer[..., :-1], torch.cat(parts, -1)) + layer[..., -1]
        if self.space.is_discrete:
            return outputs.argmax(-1)
        squashed = outputs.tanh()
        return torch.where(self.is_one_sided, 2 * squashed.clamp(min=0) - 1, squashed)

    def vector(self, action: Tensor) -> Tensor:
        """The action as numbers that the model reads."""
        return action.float() if self.space.classes is None else one_hot(action, self.space.classes)
