"""N environments that are stepped together and saved together: what the rest of Reverie sees of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property

import numpy as np
from torch import Tensor

from reverie.types import Observation, Spaces, State

_FEW = 64


class VectorEnvironment(ABC):
    """N copies of one task. Every tensor that goes in or out lies on the CPU and has a leading axis N.

    An environment whose current observation ``is_last`` is reset by the next ``step``, which ignores its action: the
    last observation of an episode is seen like any other, and no row is lost. Callers may keep what they are given,
    and do not write into it.
    """

    task: str
    spaces: Spaces
    frames_per_step: int
    num_envs: int
    seconds: float = 0.0
    """Wall time spent so far on setting simulators to work and on waiting for them."""
    drawn_by: str | None = None
    """Which OpenGL backend draws, where the simulators need one."""
    inexact: str | None = None
    """After ``set_state``: None, or the sentence that says why the run does not go on exactly."""

    @abstractmethod
    def observe(self) -> Observation:
        """The current observation of all environments. The first call begins the first episodes."""

    @abstractmethod
    def begin_step(self, action: Tensor) -> None:
        """Step every environment with its action, or reset it where its current observation was the last.

        Where simulators live in processes or a thread of their own, this only sets them to work: whatever needs their
        answer waits for it, ``observe`` first of all. The action may be overwritten afterwards.
        """

    def step(self, action: Tensor) -> Observation:
        """``begin_step``, and what it leads to."""
        self.begin_step(action)
        return self.observe()

    @abstractmethod
    def reset(self, seed: int) -> Observation:
        """Begin anew everywhere, with the episodes of another seed; what came before leaves no trace."""

    @abstractmethod
    def get_state(self) -> State:
        """Everything the environments need to go on: nested dicts of arrays, numbers and strings."""

    @abstractmethod
    def set_state(self, state: State) -> None:
        """Continue where ``get_state`` was called; where that cannot be done, cut the episode and set ``inexact``."""

    @abstractmethod
    def close(self) -> None:
        """Free every simulator. A second call does nothing."""

    @property
    def deaths(self) -> int:
        """Simulators that died and were started again, over the whole run, as far as was observed."""
        return 0

    def notices(self) -> list[str]:
        """What was observed since the last call that a person should read. Waits for nobody."""
        return []

    def summary(self, mean_scores: Mapping[str, float]) -> Mapping[str, float]:
        """What the suite derives from the mean ``scores`` of many episodes."""
        del mean_scores
        return {}

    def checked_actions(self, action: Tensor) -> np.ndarray:
        """The actions [N, ...] in the dtype of the action space."""
        expected, dtype, are_few = self._action_format
        # Between two steps of a simulator, a few numbers come out of torch in half the time in which an array does.
        native = np.array(action.tolist()) if are_few else action.detach().numpy()
        if native.shape != expected or (native.dtype.kind == "f") != (dtype.kind == "f"):
            raise ValueError(
                f"the action for {self.task} must be {dtype} of shape {expected}, "
                f"not {action.dtype} of shape {tuple(action.shape)}"
            )
        return native.astype(dtype, copy=False)

    @cached_property
    def _action_format(self) -> tuple[tuple[int, ...], np.dtype, bool]:
        """Shape and dtype of the actions of all environments, and whether they are only a few numbers."""
        shape = (self.num_envs, *self.spaces.action.shape)
        return shape, np.dtype(self.spaces.action.dtype), math.prod(shape) <= _FEW
