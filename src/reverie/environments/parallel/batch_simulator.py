"""Simulators that step N environments in one object: fast, but such an object cannot save itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from reverie.types import Spaces


@dataclass(kw_only=True, slots=True)
class BatchTimestep:
    """What N environments yield at one moment: every array has a leading axis N and belongs to the caller."""

    obs: dict[str, np.ndarray]
    reward: np.ndarray
    is_first: np.ndarray
    is_last: np.ndarray
    is_terminal: np.ndarray


class BatchSimulator(ABC):
    """N environments in one object, made with the keyword arguments ``task``, ``num_envs``, ``seed`` and its options.

    An environment whose timestep was the last of an episode is reset by the next ``step``, which ignores its action
    and gives the first timestep of the next episode: ``is_first`` set, reward 0. A time limit sets ``is_last`` and
    leaves ``is_terminal`` unset.
    """

    task: str
    """The full task name, suite included."""
    num_envs: int
    spaces: Spaces
    frames_per_step: int
    """Simulator frames that one agent step advances (the action repeat)."""

    @abstractmethod
    def reset(self) -> BatchTimestep:
        """Begin the first episodes. Called once, before the first ``step``."""

    @abstractmethod
    def step(self, action: np.ndarray) -> BatchTimestep:
        """Advance every environment by one agent step. The action [N, ...] has the dtype of ``spaces.action``."""

    @abstractmethod
    def close(self) -> None:
        """Free what the simulator holds. A second call does nothing."""
