"""One tensor under two names: ours, and the name and layout that another code gives it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from reverie.components.networks.layers import BlockLinear, Mlp, NormSilu
from reverie.types import ReverieError

Arrays = dict[str, np.ndarray]
T = TypeVar("T")


class Named(Arrays):
    """Arrays of which one that is missing is a mistake of whoever gave them. ``kind`` is what they are called."""

    def __init__(self, arrays: Mapping[str, np.ndarray], *, kind: str) -> None:
        super().__init__({name: np.asarray(value) for name, value in arrays.items()})
        self._kind = kind

    def __missing__(self, name: str) -> np.ndarray:
        raise ReverieError(f"the {self._kind} {name} is missing.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    name: str
    tensor: Tensor
    """Ours, in place: a parameter or a buffer."""
    axes: tuple[int, ...] | None = None
    """Theirs is ours with its axes in this order; None where both are the same."""
    channels: tuple[int, ...] | None = None
    """Theirs is ours with its first axis in this order, before ``axes``."""

    def theirs(self, ours: Tensor) -> np.ndarray:
        """A tensor of our layout (the weight itself, or its gradient) in theirs."""
        value = ours.detach() if self.channels is None else ours.detach()[list(self.channels)]
        return (value if self.axes is None else value.permute(self.axes)).cpu().numpy().copy()

    def ours(self, theirs: np.ndarray) -> Tensor:
        value = torch.from_numpy(np.array(theirs, dtype=np.float32))
        value = value if self.axes is None else value.permute([int(axis) for axis in np.argsort(self.axes)])
        return value if self.channels is None else value[[int(index) for index in np.argsort(self.channels)]]


def load(links: Iterable[Link], arrays: Mapping[str, np.ndarray]) -> None:
    """Write every array into the tensor of its name. Names or shapes that do not fit are refused before that."""
    by_name = {link.name: link for link in links}
    missing, unknown = sorted(by_name.keys() - arrays.keys()), sorted(arrays.keys() - by_name.keys())
    if missing or unknown:
        told = [
            f"{word} {', '.join(names[:5])}" for word, names in (("missing", missing), ("unknown", unknown)) if names
        ]
        raise ReverieError(f"the given parameters do not fit this model: {'; '.join(told)}.")
    for name, link in by_name.items():
        if link.theirs(link.tensor).shape != arrays[name].shape:
            shapes = f"{arrays[name].shape} instead of {link.theirs(link.tensor).shape}"
            raise ReverieError(f"the given parameter {name} has the shape {shapes}.")
    with torch.no_grad():
        for name, link in by_name.items():
            link.tensor.copy_(link.ours(arrays[name]))


def exported(links: Iterable[Link]) -> Arrays:
    return {link.name: link.theirs(link.tensor) for link in links}


def dense(name: str, layer: nn.Linear) -> list[Link]:
    """Kernels are (in, out) there."""
    return [
        Link(name=f"{name}/kernel", tensor=layer.weight, axes=(1, 0)),
        Link(name=f"{name}/bias", tensor=layer.bias),
    ]


def block(name: str, layer: BlockLinear) -> list[Link]:
    return [Link(name=f"{name}/kernel", tensor=layer.weight), Link(name=f"{name}/bias", tensor=layer.bias)]


def convolution(name: str, layer: nn.Conv2d, *, channels: Sequence[int] | None = None) -> list[Link]:
    """Kernels are (height, width, in, out) there."""
    assert layer.bias is not None
    order = None if channels is None else tuple(channels)
    return [
        Link(name=f"{name}/kernel", tensor=layer.weight, axes=(2, 3, 1, 0), channels=order),
        Link(name=f"{name}/bias", tensor=layer.bias, channels=order),
    ]


def norm(name: str, layer: NormSilu) -> list[Link]:
    return [Link(name=f"{name}/{part}", tensor=tensor) for part, tensor in layer.named_parameters()]


def network(mlp: Mlp, *, linears: str, norms: str) -> list[Link]:
    """``linears`` and ``norms`` are the names of the layers, with ``{}`` for their number."""
    links: list[Link] = []
    for index, (layer, its_norm) in enumerate(zip(mlp.linears, mlp.norms, strict=True)):
        assert isinstance(layer, nn.Linear)
        links += [*dense(linears.format(index), layer), *norm(norms.format(index), of_kind(its_norm, NormSilu))]
    return links


def of_kind(part: object, kind: type[T]) -> T:
    """``part`` itself; a model that is built of other parts has no tensors of these names."""
    if not isinstance(part, kind):
        raise ReverieError(
            f"the given parameters need a model with a {kind.__name__} where this one has a {type(part).__name__}."
        )
    return part
