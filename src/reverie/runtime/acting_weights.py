"""Copies of policies whose weights stay one update behind, so that a device can act while it learns."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from reverie.runtime.rng import RandomStreams
from reverie.types import Policy, ReverieError, State


class LaggedWeights:
    """``policy`` gives the copy of a policy. All copies share their networks, as the policies themselves do.

    Random streams are shared with the originals. ``refresh`` brings every copied weight to what the original is.
    """

    def __init__(self, rng: RandomStreams, device: torch.device) -> None:
        self._rng, self._device = rng, device
        self._modules: Callable[[], Mapping[str, nn.Module]] = dict
        self._copies: dict[int, Policy] = {}
        self._memo: dict[int, Any] = {}
        """What was copied, by the identity of the original, in the form in which `copy.deepcopy` keeps it."""
        self._lagged: dict[str, Tensor] = {}
        self._followed: dict[str, Tensor] = {}
        """Under the same names: what the lagged tensors are copies of."""
        self._saved: State = {}
        """Values for tensors that were not copied yet."""
        self.refreshed: torch.cuda.Event | None = None
        """On a CUDA device: when the copies were last changed."""

    def follow(self, modules: Callable[[], Mapping[str, nn.Module]]) -> None:
        self._modules = modules

    def policy(self, original: Policy) -> Policy:
        """The copy of ``original``, which is made at its first use and has the weights of that moment."""
        if id(original) not in self._copies:
            self._copies[id(original)] = self._copied(original)
            self._find_tensors()
        return self._copies[id(original)]

    @torch.no_grad()
    def refresh(self) -> None:
        if self._lagged:
            torch.ops.aten._foreach_copy_(list(self._lagged.values()), list(self._followed.values()))
        if self._saved:  # a run that was resumed learns before it acts again
            self._saved = {name: tensor.clone() for name, tensor in self._tensors() if name in self._saved}
        if self._device.type == "cuda":
            self.refreshed = torch.cuda.Event()
            self.refreshed.record()

    def get_state(self) -> State:
        return {**self._saved, **self._lagged}

    @torch.no_grad()
    def set_state(self, state: State) -> None:
        """Those that are missing there stay as they are: a run that acted with current weights has none."""
        self._saved = {name: value for name, value in state.items() if name not in self._lagged}
        for name in self._lagged.keys() & state.keys():
            self._lagged[name].copy_(state[name])

    def _copied(self, original: Policy) -> Policy:
        for generator in self._rng.streams():
            self._memo[id(generator)] = generator
        try:
            return copy.deepcopy(original, self._memo)
        except (TypeError, RuntimeError) as error:
            raise ReverieError(
                f"the policy {type(original).__name__} cannot be copied ({error}), which it must be to act with the "
                "weights of one update ago: set runtime.acting_weights=current."
            ) from error

    @torch.no_grad()
    def _find_tensors(self) -> None:
        for name, tensor in self._tensors():
            if name in self._lagged or id(tensor) not in self._memo:
                continue
            self._lagged[name], self._followed[name] = self._memo[id(tensor)].detach(), tensor
            if name in self._saved:
                self._lagged[name].copy_(self._saved.pop(name))

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """All that updates may change, by name."""
        for module_name, module in self._modules().items():
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                yield f"{module_name}.{name}", tensor
