"""Everything a workflow is given, in one frozen bundle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from reverie.environments.vector import VectorEnvironment
from reverie.runtime.acting import Acting
from reverie.runtime.flat_optimizer import FlatOptimizer
from reverie.runtime.precision import FULL_PRECISION, Precision
from reverie.runtime.rng import RandomStreams
from reverie.types import Spaces, State
from reverie.workflows.controllers import ControllerManager, found, module_states, restore_modules

T = TypeVar("T")


class WorldModelComponents:
    """The parts of the world model by name, as the configuration lists them."""

    def __init__(self, components: Mapping[str, Any]) -> None:
        self._components = dict(components)

    def find(self, name: str, kind: type[T]) -> T:
        """The component of this name; a missing one, or one of another kind, is the configuration's mistake."""
        return found(self._components, name, kind, section="components")

    def find_if_any(self, name: str, kind: type[T]) -> T | None:
        """None where the configuration has no such component, or says null."""
        return self.find(name, kind) if name in self._components else None

    def modules(self) -> dict[str, nn.Module]:
        return {name: value for name, value in self._components.items() if isinstance(value, nn.Module)}

    def get_state(self) -> State:
        return module_states(self.modules())

    def set_state(self, state: State) -> None:
        restore_modules(self.modules(), state)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkflowContext:
    config: Mapping[str, Any]
    """The resolved configuration of the whole run, for reading."""
    device: torch.device
    spaces: Spaces
    train_env: VectorEnvironment | None
    """None where nothing is collected: offline phases, loading weights without the simulator."""
    components: WorldModelComponents
    controllers: ControllerManager
    optimizers: Mapping[str, Callable[..., FlatOptimizer]]
    """Constructors that still need their parameters."""
    rng: RandomStreams
    precision: Precision = FULL_PRECISION
    acting: Acting | None = None
    """How policies are asked; None stands for eagerly, with the weights of now."""
