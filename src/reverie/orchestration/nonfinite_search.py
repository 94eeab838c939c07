"""Executes one update with every module and gradient watched, and names the first tensor that is not finite.

Looked at in the order in which an update meets them: the batch, the weights and the optimisers' memory, what modules
are given and give, losses, gradients from the last layer back, all other metrics, and at last the step itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from reverie.orchestration.black_box import batch_state
from reverie.runtime.finite import skipped_flag
from reverie.types import Batch, Phase
from reverie.workflows.base import UpdateResult, WorldModelWorkflow

Kind = Literal["batch", "weight", "optimizer", "input", "output", "loss", "gradient", "norm", "metric", "step"]

_PHRASES: dict[Kind, str] = {
    "batch": "the batch's {}",
    "weight": "the weight {}",
    "optimizer": "the optimiser's {}",
    "input": "the input of module {}, which no module made",
    "output": "the output of module {}",
    "loss": "the loss {}",
    "gradient": "the gradient of {}",
    "norm": "the norm of the gradient of {}",
    "metric": "the metric {}",
    "step": "the change of the weights by the optimiser {}, whose gradients are finite (see its learning rate),",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A tensor with an element that is not finite. ``index`` is the place of the first one."""

    kind: Kind
    name: str
    index: tuple[int, ...] = ()
    value: float = float("nan")
    count: int = 1
    """Elements that are not finite."""
    elements: int = 1

    def __str__(self) -> str:
        place = f"{self.name}{list(self.index)}" if self.index else self.name
        many = f" ({self.count:,} of {self.elements:,} elements are not finite)" if self.elements > 1 else ""
        return f"{_PHRASES[self.kind].format(place)} is {self.value}{many}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed:
    result: UpdateResult
    finding: Finding | None
    """None when everything was finite."""

    @property
    def is_skipped(self) -> bool:
        flag = skipped_flag(self.result.metrics)
        return flag is not None and bool(flag)


def replayed_update(workflow: WorldModelWorkflow, hook: str, batch: Batch | None, phase: Phase) -> Replayed:
    """Call the hook once, watched. The workflow must stand where it stood before that update."""
    given = _first("batch", _tensors(batch_state(batch), "")) or _first_in_state(workflow)
    with _Watch(workflow) as watch:
        method = getattr(workflow, hook)
        result: UpdateResult = method(phase=phase) if batch is None else method(batch, phase=phase)
    replayed = Replayed(result=result, finding=given)
    if given is not None or not replayed.is_skipped:  # an infinity on the way that did no harm is no fault
        return replayed
    losses = {name: value for name, value in result.metrics.items() if "loss" in name.split("/")}
    found = (
        watch.forward
        or _first("loss", ((name.removeprefix("loss/"), value) for name, value in losses.items()))
        or watch.backward
        or _first("metric", iter(result.metrics.items()))
        or Finding(kind="step", name=", ".join(workflow.optimizers()))
    )
    return Replayed(result=result, finding=found)


class _Watch:
    """Hooks on every module and parameter of a workflow, as long as the block lasts; keeps the first of each way."""

    def __init__(self, workflow: WorldModelWorkflow) -> None:
        self.forward: Finding | None = None
        self.backward: Finding | None = None
        self._modules = workflow.modules()
        self._stack = ExitStack()

    def __enter__(self) -> _Watch:
        for top, module in self._modules.items():
            for name, part in module.named_modules(prefix=top):
                self._watch_module(name, part)
            for name, parameter in module.named_parameters(prefix=top):
                if parameter.requires_grad:
                    self._watch_gradient(name, parameter)
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def _watch_module(self, name: str, module: nn.Module) -> None:
        def before(_: nn.Module, positional: Any, named: Any) -> None:
            self.forward = self.forward or _first("input", _tensors([positional, named], ""), of=name)

        def after(_: nn.Module, __: Any, output: Any) -> None:
            self.forward = self.forward or _first("output", _tensors(output, ""), of=name)

        self._stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
        self._stack.callback(module.register_forward_hook(after).remove)

    def _watch_gradient(self, name: str, parameter: nn.Parameter) -> None:
        def arrived(gradient: Tensor) -> None:
            norm = torch.linalg.vector_norm(gradient)
            self.backward = self.backward or _first("gradient", [(name, gradient)]) or _first("norm", [(name, norm)])

        self._stack.callback(parameter.register_hook(arrived).remove)


def _first_in_state(workflow: WorldModelWorkflow) -> Finding | None:
    weights = {name: dict(module.state_dict()) for name, module in workflow.modules().items()}
    memory = {name: optimizer.get_state() for name, optimizer in workflow.optimizers().items()}
    return _first("weight", _tensors(weights, "", between=".")) or _first(
        "optimizer", _tensors(memory, "", between=".")
    )


def _first(kind: Kind, tensors: Any, *, of: str | None = None) -> Finding | None:
    """The first tensor with an element that is not finite; ``of`` is a name for all of them."""
    for name, tensor in tensors:
        is_bad = ~tensor.detach().isfinite()
        if bool(is_bad.any()):
            index = tuple(is_bad.nonzero()[0].tolist())
            return Finding(
                kind=kind,
                name=of or name,
                index=index,
                value=float(tensor.detach()[index]),
                count=int(is_bad.sum()),
                elements=tensor.numel(),
            )
    return None


def _tensors(value: Any, path: str, *, between: str = "/") -> Iterator[tuple[str, Tensor]]:
    """Every floating tensor in nested containers, dataclasses and plain objects, such as distributions, by name."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield path, value
        return
    if isinstance(value, Mapping):
        parts = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, (list, tuple)):
        parts = [(str(number), part) for number, part in enumerate(value)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    elif hasattr(value, "__dict__") and not isinstance(value, (type, nn.Module)):
        parts = list(vars(value).items())
    else:
        return
    for name, part in parts:
        yield from _tensors(part, f"{path}{between}{name}" if path else name, between=between)
