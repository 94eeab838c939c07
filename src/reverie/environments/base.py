"""What every simulator looks like to the rest of Reverie."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import ClassVar, Literal

import numpy as np

from reverie.types import ReverieError, Spaces, State, Timestep

Resume = Literal["state", "replay", "restart"]
"""How an open episode comes back: from saved simulator state, by repeating its actions from its seed, or not at all."""


class Environment(ABC):
    """One simulator that plays one episode at a time.

    ``reset`` yields the first timestep of an episode: ``is_first`` set, reward 0. ``step`` yields the timestep that the
    action led to; its reward and flags arrive with its observation. A time limit sets ``is_last`` and leaves
    ``is_terminal`` unset. After ``is_last`` only ``reset`` may follow. Yielded arrays belong to the caller, and
    what an episode shows depends on nothing but its seed and its actions (unless ``resume`` is "restart").
    """

    task: str
    """The full task name, suite included."""
    spaces: Spaces
    frames_per_step: int
    """Simulator frames that one agent step advances (the action repeat)."""
    resume: Resume
    needs_rendering: ClassVar[bool] = False
    """Whether the simulator may draw through OpenGL, so that a backend must be found before it is imported."""

    @abstractmethod
    def reset(self, seed: int) -> Timestep:
        """Begin the episode that this seed stands for."""

    @abstractmethod
    def step(self, action: np.ndarray) -> Timestep:
        """Advance by one agent step. The action has the shape and dtype of ``spaces.action``."""

    def replay(self, seed: int, actions: np.ndarray) -> Timestep:
        """Play an episode again and give the timestep it arrives at. A suite may skip drawing what nobody sees."""
        timestep = self.reset(seed)
        for action in actions:
            if timestep.is_last:
                return timestep  # it does not repeat itself: whoever compares will see
            timestep = self.step(np.array(action))
        return timestep

    @abstractmethod
    def close(self) -> None:
        """Free what the simulator holds. A second call does nothing."""

    def get_state(self) -> State:
        """The simulator's whole state. A simulator whose ``resume`` is "state" overrides this and ``set_state``."""
        raise TypeError(f"{type(self).__name__} comes back by {self.resume}; it has no state to give")

    def set_state(self, state: State) -> None:
        raise TypeError(
            f"{type(self).__name__} comes back by {self.resume}; it cannot take a state of {len(state)} keys"
        )

    @staticmethod
    def summary(mean_scores: Mapping[str, float]) -> Mapping[str, float]:
        """What a suite derives from the mean ``scores`` of many episodes; nothing by default."""
        del mean_scores
        return {}


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskInfo:
    """One line of the list of tasks. A task with a ``problem`` cannot run here; the sentence says what to do."""

    name: str
    observation: str
    action: str
    episode_steps: int | None
    """The time limit in agent steps; None where the suite sets none."""
    frames_per_step: int
    problem: str | None = None


def environment_seed(seed: int, env_index: int, reset_count: int) -> int:
    """The seed of one episode, of 31 bits: the same on every machine and numpy version, unrelated between episodes."""
    if seed < 0:
        raise ReverieError(f"The seed is {seed}, but a seed must be 0 or larger: set experiment.seed to such a number.")
    # The counters are the spawn key and not more entropy: a seed of many words must not run into them.
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(env_index, reset_count))
    # 31 bits: some simulators read their seed as a signed 32-bit integer.
    return int(sequence.generate_state(1, np.uint32)[0]) >> 1


def simulator_package(module: str, *, task: str, extra: str) -> ModuleType:
    """The imported ``module``, which the optional dependencies ``reverie[extra]`` bring."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        why = " ".join(str(error).split())
        raise ReverieError(f"{task} cannot run here ({why}): run pip install 'reverie[{extra}]'.") from error
