"""MDN-RNN: an LSTM that predicts the next latent as mixtures of normals, and perhaps reward and termination."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.dynamics.gaussian_mixture import GaussianMixture
from reverie.components.networks.layers import linear
from reverie.types import require

_FORGET_BIAS = 1.0
"""Added to the forget gate, so that memory lasts before anything is learned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """What the LSTM knows before it reads the present latent and action: both [..., units]."""

    hidden: Tensor
    cell: Tensor


@dataclass(kw_only=True, slots=True)
class Expected:
    """What follows from a hidden state."""

    latent: GaussianMixture
    reward: Tensor | None
    termination: Tensor | None
    """The logit of the episode's true end."""


class MdnRnn(nn.Module):
    """The hidden state after (latent, action) predicts the latent, the reward and the end that arrive next.

    ``has_reward_head`` and ``has_termination_head`` are needed by dreams that a controller is trained in.
    """

    def __init__(
        self,
        *,
        latent_dim: int,
        action_dim: int,
        units: int = 256,
        mixtures: int = 5,
        has_reward_head: bool = False,
        has_termination_head: bool = False,
    ) -> None:
        super().__init__()
        require("units of the MDN-RNN", units, at_least=1)
        require("mixtures of the MDN-RNN", mixtures, at_least=1)
        self.latent_dim, self.units, self.mixtures = latent_dim, units, mixtures
        self.has_reward_head, self.has_termination_head = has_reward_head, has_termination_head
        self.from_input = linear(latent_dim + action_dim, 4 * units, fan="average")
        self.from_hidden = linear(units, 4 * units, has_bias=False, fan="average")
        heads = int(has_reward_head) + int(has_termination_head)
        self.output = linear(units, 3 * latent_dim * mixtures + heads, fan="average")

    def dims(self) -> dict[str, int]:
        return {"memory_dim": self.units}

    def initial(self, count: int) -> Memory:
        zeros = torch.zeros(count, self.units, device=self.output.weight.device)
        return Memory(hidden=zeros, cell=zeros)

    def step(self, memory: Memory, latent: Tensor, action: Tensor) -> Memory:
        """The memory after acting: it holds what was seen and done up to now."""
        return self._advanced(memory, self.from_input(torch.cat([latent, action], -1)))

    def sequence(self, latent_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor) -> Tensor:
        """The hidden states [B, T, units] after each step of sequences that begin without memory, as episodes do."""
        inputs_BTG = self.from_input(torch.cat([latent_BTD, action_BTA], -1))
        goes_on_BT1 = (~is_first_BT).to(inputs_BTG.dtype).unsqueeze(-1)
        memory, hidden = self.initial(len(latent_BTD)), []
        for inputs, goes_on in zip(inputs_BTG.unbind(1), goes_on_BT1.unbind(1), strict=True):
            memory = Memory(hidden=memory.hidden * goes_on, cell=memory.cell * goes_on)
            memory = self._advanced(memory, inputs)
            hidden.append(memory.hidden)
        return torch.stack(hidden, 1)

    def expected(self, hidden: Tensor) -> Expected:
        sizes = [self.latent_dim * self.mixtures] * 3
        rest = self.output.out_features - sum(sizes)
        logits, mean, log_stddev, heads = self.output(hidden).float().split([*sizes, rest], dim=-1)
        shape = (self.latent_dim, self.mixtures)
        return Expected(
            latent=GaussianMixture(
                logits=logits.unflatten(-1, shape),
                mean=mean.unflatten(-1, shape),
                log_stddev=log_stddev.unflatten(-1, shape),
            ),
            reward=heads[..., 0] if self.has_reward_head else None,
            termination=heads[..., -1] if self.has_termination_head else None,
        )

    def losses(
        self,
        hidden: Tensor,
        latent: Tensor,
        *,
        reward: Tensor,
        is_terminal: Tensor,
        positive_weight: float,
    ) -> dict[str, Tensor]:
        """Per step, about what arrived after it. Ends are rare: each counts ``positive_weight`` times."""
        expected = self.expected(hidden)
        found = {"latent": -expected.latent.log_prob(latent).mean(-1)}
        if expected.reward is not None:
            found["reward"] = (expected.reward - reward).square()
        if expected.termination is not None:
            ends = is_terminal.float()
            loss = F.binary_cross_entropy_with_logits(expected.termination, ends, reduction="none")
            found["termination"] = loss * (1 + (positive_weight - 1) * ends)
        return found

    def _advanced(self, memory: Memory, inputs: Tensor) -> Memory:
        gates = inputs + self.from_hidden(memory.hidden)
        enter, candidate, forget, leave = gates.chunk(4, -1)
        cell = (forget + _FORGET_BIAS).sigmoid() * memory.cell + enter.sigmoid() * candidate.tanh()
        return Memory(hidden=leave.sigmoid() * cell.tanh(), cell=cell)
