"""Stands where a run has no environment to collect in, because everything it learns from is a dataset."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from reverie.environments.vector import VectorEnvironment
from reverie.types import Observation, Spaces, State


class NoEnvironment(VectorEnvironment):
    """None at all, with the spaces of the dataset. It has no state and cannot be stepped."""

    task = "no environment"
    frames_per_step = 1
    num_envs = 0

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces

    def observe(self) -> Observation:
        self._refuse()

    def begin_step(self, action: Tensor) -> None:
        del action
        self._refuse()

    def reset(self, seed: int) -> Observation:
        del seed
        self._refuse()

    def get_state(self) -> State:
        return {}

    def set_state(self, state: State) -> None:
        assert not state, "a checkpoint of a run with environments does not fit one without; the configuration differs"

    def close(self) -> None:
        """Nothing is open."""

    def _refuse(self) -> NoReturn:
        raise AssertionError("the phases were checked: none of them collects without an environment")
