"""Parts of TD-MPC that follow the task's actions by themselves: numbers or classes.

Calling these classes gives the part that fits, as calling ``pathlib.Path`` gives the path of this system.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from reverie.components.controllers.action_search import ActionSearch
from reverie.components.controllers.policy_prior import PolicyPrior
from reverie.types import Space


class FittingPrior:
    """The policy for actions of this kind; the other one is never made."""

    def __new__(
        cls,
        *,
        space: Space,
        latent_dim: int,
        network: Callable[..., nn.Module],
        continuous: Callable[..., PolicyPrior],
        discrete: Callable[..., PolicyPrior],
    ) -> PolicyPrior:
        made = discrete if space.is_discrete else continuous
        return made(space=space, latent_dim=latent_dim, network=network)


class FittingSearch:
    """How plans of such actions are searched."""

    def __new__(
        cls, *, space: Space, continuous: Callable[..., ActionSearch], discrete: Callable[..., ActionSearch]
    ) -> ActionSearch:
        return discrete(space=space) if space.is_discrete else continuous()
