"""The MDN-RNN as a vector environment: it goes on from latents, step by step, without a task behind it."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from reverie.components.dynamics.mdn_rnn import MdnRnn, Memory
from reverie.components.representation_learners.conv_vae import ConvVae
from reverie.types import ReverieError, Row, State, require


class LatentDream:
    """N dreams side by side. A row's ``stored`` has the latent and the memory that a controller reads; its action is
    the one that led to it, since none was chosen there yet.

    A dream ends where the model gives the end a chance above one half (``is_terminal``), and after ``limit`` steps
    (``is_last`` alone). What ended stays as it is until the next ``reset``. ``copies`` dreams draw the same random
    numbers: with 2, the second half of the dreams lives through the chances of the first.
    """

    def __init__(
        self,
        rnn: MdnRnn,
        *,
        vae: ConvVae | None,
        rng: Generator,
        temperature: float,
        limit: int,
    ) -> None:
        """With a ``vae`` the rows have pictures; a dream that only a controller sees does without."""
        require("temperature of a dream", temperature, at_least=1e-3)
        require("limit of a dream", limit, at_least=1)
        self._rnn, self._vae, self._rng = rnn, vae, rng
        self._temperature, self._limit = temperature, limit
        self._latent = torch.zeros(0)
        self._memory = Memory(hidden=self._latent, cell=self._latent)
        self._is_terminal = self._is_last = torch.zeros(0, dtype=torch.bool)
        self._steps = 0
        self._copies = 1

    def reset(self, starts_ND: Tensor, *, copies: int = 1) -> Row:
        """Begin at these latents; ``copies`` holds until the next reset."""
        count = len(starts_ND)
        if count % copies:
            raise ReverieError(f"{count} dreams cannot be {copies} times the same ones.")
        self._latent, self._copies, self._steps = starts_ND.clone(), copies, 0
        self._memory = self._rnn.initial(count)
        no = torch.zeros(count, dtype=torch.bool, device=starts_ND.device)
        self._is_terminal, self._is_last = no, no.clone()
        return self._row(torch.zeros(count, device=no.device), None, is_first=~no)

    @torch.no_grad()
    def step(self, action: Tensor) -> Row:
        """``action`` [N, A] as the model reads it. An ended dream pays nothing."""
        was_live = ~self._is_last
        self._memory = self._rnn.step(self._memory, self._latent, action)
        expected = self._rnn.expected(self._memory.hidden)
        fresh = expected.latent.sample(*self._chances(), temperature=self._temperature)
        self._latent = torch.where(was_live.unsqueeze(-1), fresh, self._latent)
        reward = torch.zeros(len(action), device=action.device) if expected.reward is None else expected.reward
        if expected.termination is not None:
            self._is_terminal = self._is_terminal | (was_live & (expected.termination > 0))
        self._steps += 1
        self._is_last = self._is_last | self._is_terminal | (self._steps >= self._limit)
        return self._row(reward * was_live, action, is_first=torch.zeros_like(was_live))

    def get_state(self) -> State:
        return {
            "latent": self._latent.clone(),
            "hidden": self._memory.hidden.clone(),
            "cell": self._memory.cell.clone(),
            "is_terminal": self._is_terminal.clone(),
            "is_last": self._is_last.clone(),
            "steps": self._steps,
            "copies": self._copies,
        }

    def set_state(self, state: State) -> None:
        device = self._rng.device
        self._latent = state["latent"].to(device)
        self._memory = Memory(hidden=state["hidden"].to(device), cell=state["cell"].to(device))
        self._is_terminal, self._is_last = state["is_terminal"].to(device), state["is_last"].to(device)
        self._steps, self._copies = state["steps"], state["copies"]

    def row(self) -> Row:
        """Where the dreams stand, without what the last step paid."""
        return self._row(
            torch.zeros(len(self._latent), device=self._latent.device), None, is_first=self._is_last & False
        )

    def _chances(self) -> tuple[Tensor, Tensor]:
        """A uniform and a normal number for every number of every latent."""
        count, dim = self._latent.shape
        shape, device = (count // self._copies, dim), self._latent.device
        uniform = torch.rand(shape, device=device, generator=self._rng)
        noise = torch.randn(shape, device=device, generator=self._rng)
        return uniform.repeat(self._copies, 1), noise.repeat(self._copies, 1)

    def _row(self, reward: Tensor, action: Tensor | None, *, is_first: Tensor) -> Row:
        pictures = {} if self._vae is None else {self._vae.key: self._vae.decoded(self._latent)}
        none = self._latent.new_zeros(len(reward), 0)
        return Row(
            obs=pictures,
            reward=reward,
            is_first=is_first,
            is_last=self._is_last,
            is_terminal=self._is_terminal,
            action=none if action is None else action,
            stored={"latent": self._latent, "hidden": self._memory.hidden, "cell": self._memory.cell},
        )
