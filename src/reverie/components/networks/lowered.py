"""Copies of networks whose products are kept in bfloat16, for code that uses the same weights many times in a row."""

from __future__ import annotations

import copy
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from reverie.components.networks.layers import BlockLinear

Network = TypeVar("Network", bound=nn.Module)


class LoweredCopy(Generic[Network]):
    """``network`` computes as the original does under autocast, but converts no weight: ``refresh`` did it for all.

    Weights and biases of products are copies without gradients; everything else is shared with the original.
    """

    def __init__(self, original: Network) -> None:
        self.network = copy.deepcopy(original)
        self._lowered: list[Tensor] = []
        self._originals: list[Tensor] = []
        for copied, module in zip(self.network.modules(), original.modules(), strict=True):
            for name, parameter in module.named_parameters(recurse=False):
                shared = parameter
                if isinstance(module, nn.Linear | nn.Conv2d | BlockLinear):
                    shared = nn.Parameter(parameter.detach().to(torch.bfloat16), requires_grad=False)
                    self._lowered.append(shared)
                    self._originals.append(parameter)
                copied.register_parameter(name, shared)
            for name, buffer in module.named_buffers(recurse=False):
                copied.register_buffer(name, buffer)

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what an optimiser has changed since the last time."""
        torch.ops.aten._foreach_copy_(self._lowered, self._originals)
