"""Dreamer's critic, alone or beside a slow copy of itself."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn

from reverie.components.networks.heads import Scalar, ScalarHead
from reverie.runtime.finite import replace_where
from reverie.types import ReverieError, require


class Critic(nn.Module):
    """Values a latent. A slow copy moves towards it by ``slow_rate`` in every ``slow_every``-th update, beginning with
    the first; there is none when ``slow_rate`` is None. A rate of 1 copies.

    ``bootstrap`` says whose values returns and advantages are made of.
    """

    slow_updates: Tensor

    def __init__(
        self,
        *,
        head: ScalarHead,
        slow_rate: float | None = 0.02,
        slow_every: int = 1,
        bootstrap: Literal["online", "slow"] = "online",
    ) -> None:
        super().__init__()
        require("slow_every of the critic", slow_every, at_least=1)
        if slow_rate is None and bootstrap == "slow":
            raise ReverieError("a critic with `bootstrap: slow` needs a slow copy: set its slow_rate.")
        self.online = head
        self.slow: ScalarHead | None = None
        if slow_rate is not None:
            require("slow_rate of the critic", slow_rate, at_least=0, at_most=1)
            self.slow = copy.deepcopy(self.online).requires_grad_(False)
        self._slow_rate, self._slow_every, self._bootstrap = slow_rate or 0.0, slow_every, bootstrap
        if slow_every > 1:
            self.register_buffer("slow_updates", torch.zeros((), dtype=torch.int64))

    def forward(self, feature: Tensor) -> Scalar:
        return self.online(feature)

    @torch.no_grad()
    def slow_value(self, feature: Tensor) -> Tensor:
        assert self.slow is not None, "the workflow has checked that there is a slow copy"
        return self.slow(feature).mean()

    def worth(self, feature: Tensor, value: Scalar | None = None) -> Tensor:
        """The values that returns are made of. ``value`` is what the critic has said of the same features already.

        Without it, gradients of the features are followed through the critic, whose parameters the caller freezes.
        """
        if self._bootstrap == "slow" and self.slow is not None:
            return self.slow(feature).mean()
        return (self.online(feature) if value is None else value).mean()

    @torch.no_grad()
    def update_slow(self, *, unless: Tensor) -> None:
        """The slow copy follows, unless the online one was not moved: then it stays as it is, too."""
        if self.slow is None:
            return
        is_due = ~unless
        if self._slow_every > 1:
            # Which update this is, only the device knows: a captured graph replays the same operations each time.
            is_due = is_due & (self.slow_updates % self._slow_every == 0)
            replace_where(~unless, [(self.slow_updates, self.slow_updates + 1)])
        pairs = zip(self.slow.parameters(), self.online.parameters(), strict=True)
        replace_where(is_due, [(slow, slow.lerp(online, self._slow_rate)) for slow, online in pairs])
