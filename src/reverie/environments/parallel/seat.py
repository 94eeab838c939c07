"""Where one simulator runs: here, or (`worker.py`) in a process of its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from reverie.environments.base import Environment, Resume
from reverie.environments.parallel.board import Board
from reverie.types import Spaces, State


@dataclass(frozen=True, kw_only=True, slots=True)
class Introduction:
    """What a simulator says of itself before it plays."""

    task: str
    spaces: Spaces
    frames_per_step: int
    resume: Resume
    drawn_by: str | None = None
    """Which backend draws, where the simulator draws through OpenGL."""


class DeadSimulatorError(Exception):
    """A simulator's process is gone. ``cause`` is one line, ``traceback`` is its own where it left one.

    Where simulators share a process, ``is_first`` is set for one of them, so that the death is counted once: for the
    one that was at work, or for the first that noticed where none was.
    """

    def __init__(self, cause: str, traceback: str = "", *, is_first: bool = True) -> None:
        super().__init__(cause)
        self.cause = cause
        self.traceback = traceback
        self.is_first = is_first


class Seat(Protocol):
    """Each ``begin_*`` is answered by one ``finish``, so that many simulators can work at the same time.

    ``finish`` has put the timestep on the board and returns its scores. Every method may raise `DeadSimulatorError`,
    after which only ``restart`` and ``close`` may follow.
    """

    def introduction(self) -> Introduction: ...

    def attach(self, board: Board, index: int) -> None: ...

    def begin_reset(self, seed: int) -> None: ...

    def begin_step(self) -> None: ...

    def begin_replay(self, seed: int, actions: np.ndarray) -> None: ...

    def finish(self) -> Mapping[str, float]: ...

    def get_state(self) -> State: ...

    def set_state(self, state: State) -> None: ...

    def restart(self) -> None: ...

    def close(self) -> None: ...


class InlineSeat:
    """A simulator in this process. What it raises passes through: there is no process whose death could be mended."""

    def __init__(self, make: Callable[[], Environment]) -> None:
        self._environment = make()
        self._scores: Mapping[str, float] = {}

    def introduction(self) -> Introduction:
        one = self._environment
        # A simulator that draws has left there what it found out about this machine.
        drawn_by = os.environ.get("REVERIE_RENDERING") if one.needs_rendering else None
        return Introduction(
            task=one.task,
            spaces=one.spaces,
            frames_per_step=one.frames_per_step,
            resume=one.resume,
            drawn_by=drawn_by,
        )

    def attach(self, board: Board, index: int) -> None:
        self._board, self._index = board, index

    def begin_reset(self, seed: int) -> None:
        timestep = self._environment.reset(seed)
        self._board.write(self._index, timestep)
        self._scores = timestep.scores

    def begin_step(self) -> None:
        # A copy, because a simulator may write into the array it is given.
        timestep = self._environment.step(self._board.action[self._index].copy())
        self._board.write(self._index, timestep)
        self._scores = timestep.scores

    def begin_replay(self, seed: int, actions: np.ndarray) -> None:
        timestep = self._environment.replay(seed, actions)
        self._board.write(self._index, timestep)
        self._scores = timestep.scores

    def finish(self) -> Mapping[str, float]:
        return self._scores

    def get_state(self) -> State:
        return self._environment.get_state()

    def set_state(self, state: State) -> None:
        self._environment.set_state(state)

    def restart(self) -> None:
        raise AssertionError("a simulator in this process never dies alone")

    def close(self) -> None:
        self._environment.close()
