"""Slow copies of networks, whose values the others learn from."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from reverie.runtime.compilation import compiled_step
from reverie.runtime.finite import replace_where
from reverie.types import ReverieError, require

Module = TypeVar("Module", bound=nn.Module)


class TargetNetworks(nn.Module):
    """Copies of the parts named in ``of``. They move towards them by ``rate`` in every ``every``-th update."""

    updates: Tensor

    def __init__(self, *, of: Sequence[str], rate: float = 0.01, every: int = 1) -> None:
        super().__init__()
        require("rate of the target networks", rate, at_least=0, at_most=1)
        require("every of the target networks", every, at_least=1)
        self.of, self._rate, self._every = tuple(of), rate, every
        self.copies = nn.ModuleDict()
        self._originals: dict[str, nn.Module] = {}
        if every > 1:
            self.register_buffer("updates", torch.zeros((), dtype=torch.int64))

    def copy(self, modules: Mapping[str, nn.Module]) -> None:
        """Begin as the parts are now. They are looked up once, where they are on their device."""
        for name in self.of:
            if name not in modules:
                raise ReverieError(f"`components.target.of` names {name}, but there are: {', '.join(sorted(modules))}.")
            self._originals[name] = modules[name]
            self.copies[name] = copy.deepcopy(modules[name]).requires_grad_(False)

    def slow(self, name: str, original: Module) -> Module:
        """The copy of ``original``, or itself where none follows it."""
        if name not in self.of:
            return original
        copied = self.copies[name]
        assert isinstance(copied, type(original)), "a copy is of the kind of its original"
        return copied

    @torch.no_grad()
    def follow(self, *, unless: Tensor) -> None:
        """Move, unless the parts were not moved either."""
        is_due = ~unless
        if self._every > 1:
            # Which update this is, only the device knows: a captured graph replays the same operations each time.
            is_due = is_due & (self.updates % self._every == 0)
            replace_where(~unless, [(self.updates, self.updates + 1)])
        slow = [one for name in self.of for one in self.copies[name].parameters()]
        fast = [one for name in self.of for one in self._originals[name].parameters()]
        _moved(slow, fast, torch.full_like(is_due, self._rate, dtype=torch.float32), is_due)


@compiled_step
def _moved(slow: Sequence[Tensor], fast: Sequence[Tensor], rate: Tensor, is_due: Tensor) -> None:
    replace_where(is_due, [(one, one.lerp(other, rate)) for one, other in zip(slow, fast, strict=True)])
