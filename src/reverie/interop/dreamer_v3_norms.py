"""The norms and activations that the published code offers beside those of its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.layers import NormSilu

Network = TypeVar("Network", bound=nn.Module)

NORMS = ("rms", "layer", "none")
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "swish": F.silu,
    "gelu": lambda x: F.gelu(x, approximate="tanh"),  # what JAX means by it
    "relu": F.relu,
    "relu2": lambda x: F.relu(x).square(),
    "elu": F.elu,
    "mish": F.mish,
    "tanh": torch.tanh,
    "none": lambda x: x,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class NormForm:
    norm: str = "rms"
    activation: str = "silu"
    epsilon: float = 1e-4


class PublishedNorm(NormSilu):
    """What stands between two layers in another form. All norms of the published code share their epsilon, and the
    layers in front of them keep their biases."""

    is_known_to_kernels = False

    def __init__(self, dim: int, form: NormForm) -> None:
        super().__init__(dim)
        self._form = form
        if form.norm == "layer":
            self.shift = nn.Parameter(torch.zeros(dim))
        elif form.norm == "none":
            del self.scale

    def forward(self, x: Tensor) -> Tensor:
        form = self._form
        if form.norm == "layer":
            x = F.layer_norm(x, self.scale.shape, self.scale, self.shift, form.epsilon)
        elif form.norm == "rms":
            x = F.rms_norm(x, self.scale.shape, self.scale, form.epsilon)
        return ACTIVATIONS[form.activation](x)


def formed(network: Network, form: NormForm) -> Network:
    """``network`` itself, with its norms and activations in this form."""
    if form != NormForm():
        for parent in list(network.modules()):
            for name, child in list(parent.named_children()):
                if isinstance(child, NormSilu):
                    setattr(parent, name, PublishedNorm(child.scale.numel(), form))
    return network
