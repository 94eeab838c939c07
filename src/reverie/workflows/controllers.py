"""The controllers of a run by name: actor, critic, planner, explorer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from torch import nn

from reverie.types import ReverieError, State

T = TypeVar("T")


class ControllerManager:
    """Finds, freezes and saves controllers. Those without parameters are simply held."""

    def __init__(self, controllers: Mapping[str, Any]) -> None:
        self._controllers = dict(controllers)
        self._frozen: frozenset[str] = frozenset()
        self._learning: dict[str, list[nn.Parameter]] = {}
        """Parameters that were learning before the first freeze: a slow copy must not start to with a thaw."""

    def __iter__(self) -> Iterator[str]:
        return iter(self._controllers)

    def find(self, name: str, kind: type[T]) -> T:
        """The controller of this name; a missing one, or one of another kind, is the configuration's mistake."""
        return found(self._controllers, name, kind, section="controller")

    def modules(self) -> dict[str, nn.Module]:
        return {name: value for name, value in self._controllers.items() if isinstance(value, nn.Module)}

    def freeze(self, name: str, *, is_frozen: bool = True) -> None:
        """A frozen controller still acts, but its parameters receive no gradient."""
        module = self.find(name, nn.Module)
        for parameter in self._learning.setdefault(name, [p for p in module.parameters() if p.requires_grad]):
            parameter.requires_grad_(not is_frozen)
        self._frozen = self._frozen | {name} if is_frozen else self._frozen - {name}

    def get_state(self) -> State:
        frozen = [name for name, module in self.modules().items() if name in self._frozen]
        return {"modules": module_states(self.modules()), "frozen": frozen}

    def set_state(self, state: State) -> None:
        restore_modules(self.modules(), state["modules"])
        for name in self.modules():
            if (name in state["frozen"]) != (name in self._frozen):
                self.freeze(name, is_frozen=name in state["frozen"])


def found(parts: Mapping[str, Any], name: str, kind: type[T], *, section: str) -> T:
    if name not in parts:
        names = ", ".join(sorted(parts)) or "none"
        raise ReverieError(f"the workflow needs `{section}.{name}`, but the configuration has: {names}.")
    if not isinstance(parts[name], kind):
        raise ReverieError(
            f"`{section}.{name}` must be of the kind {kind.__name__} here, got {type(parts[name]).__name__}."
        )
    return parts[name]


def module_states(modules: Mapping[str, nn.Module]) -> State:
    return {
        name: {key: value.detach().clone() for key, value in module.state_dict().items()}
        for name, module in modules.items()
    }


def restore_modules(modules: Mapping[str, nn.Module], state: State) -> None:
    """In place: the parameters keep their addresses."""
    for name, module in modules.items():
        module.load_state_dict(state[name])
