"""One of N environments: which episode it plays, how it comes back after a resume, and what follows a death."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from reverie.environments.base import Resume, environment_seed
from reverie.environments.parallel.board import Board
from reverie.environments.parallel.seat import DeadSimulatorError, Introduction, Seat
from reverie.types import Observation, ReverieError, State, Timestep

_MAX_DEATHS = 3
"""Deaths of one simulator without a finished episode between them, after which a run stops."""


class Slot:
    """Episodes are seeded by ``(seed, index, reset_count)``. The current timestep lies on the board."""

    def __init__(self, seat: Seat, *, index: int, about: Introduction, board: Board, seed: int) -> None:
        self.index = index
        self.seed = seed
        self.deaths = 0
        self.notices: list[str] = []
        self.scores: Mapping[str, float] = {}
        self.has_ended = False
        """Whether the current observation is the last of its episode."""
        self.is_lost = False
        """Whether it is that only because the simulator was lost."""
        self.resume: Resume = about.resume
        self._seat = seat
        self._about = about
        self._board = board
        self._reset_count = 0
        """Episodes begun so far; the open one has the seed of ``reset_count - 1``."""
        self._steps = 0
        """Agent steps taken in the open episode."""
        self._actions = bytearray()
        """The open episode's actions one after the other, kept only where it comes back by replay."""
        self._deaths_in_a_row = 0
        self._pending: Literal["reset", "step"] = "reset"
        try:
            seat.attach(board, index)
        except DeadSimulatorError as death:
            self._restart(death)  # which attaches it too

    @property
    def is_begun(self) -> bool:
        return self._reset_count > 0

    def forget(self, seed: int) -> None:
        """As if nothing had been played, with the episodes of another seed."""
        self.seed = seed
        self._reset_count, self.has_ended = 0, False

    def begin(self) -> None:
        """Set the simulator to work: on a new episode after a last observation, else on the action on the board."""
        self.is_lost = False
        if self._reset_count == 0 or self.has_ended:
            self._begin_reset(self._reset_count + 1)
            return
        self._pending = "step"
        self._steps += 1
        if self.resume == "replay":
            self._actions += self._board.action[self.index].tobytes()
        try:
            self._seat.begin_step()
        except Exception as error:
            self._note(error)
            raise

    def finish(self, previous: Observation | None) -> None:
        """Wait until the timestep is on the board. ``previous`` was shown before it, for the case that none comes."""
        try:
            self.scores = self._seat.finish()
        except DeadSimulatorError as death:
            self._restart(death)
            if self._pending == "reset" or previous is None:
                self._begin_reset(self._reset_count)
                self.finish(None)
            else:
                # The observation before was seen and acted upon: the episode ends with it, one step later.
                self._show(_truncated(previous, self.index))
                self.is_lost = True
            return
        self.has_ended = bool(self._board.is_last[self.index])
        if self.has_ended:
            self._deaths_in_a_row = 0

    def get_state(self) -> State:
        simulator = self._simulator_state()  # first: a simulator that dies now changes all the rest
        state: State = {
            "seed": self.seed,
            "reset_count": self._reset_count,
            "steps": self._steps,
            "deaths": self.deaths,
            "deaths_in_a_row": self._deaths_in_a_row,
            "is_lost": self.is_lost,
        }
        if not self.is_begun:
            return state
        state["timestep"] = _timestep_state(self._board.read(self.index, self.scores))
        if simulator is not None:
            state["simulator"] = simulator
        if self.resume == "replay":
            space = self._about.spaces.action
            played = b"" if self.has_ended else bytes(self._actions)  # a reset follows, which needs none of them
            state["actions"] = np.frombuffer(played, space.dtype).reshape(-1, *space.shape)
        return state

    def begin_restore(self, state: State) -> None:
        """Set the simulator to work on its open episode, where it has to be played again."""
        self.seed = int(state.get("seed", self.seed))  # a reset may have brought another one than the run's
        self.deaths, self._deaths_in_a_row = int(state["deaths"]), int(state["deaths_in_a_row"])
        self._reset_count, self._steps = int(state["reset_count"]), int(state["steps"])
        self._actions, self.scores, self.has_ended, self.is_lost = bytearray(), {}, False, bool(state["is_lost"])
        if self.resume == "replay" and _has_open_episode(state):
            space = self._about.spaces.action
            again = np.array(state["actions"], dtype=space.dtype).reshape(-1, *space.shape)
            self._actions = bytearray(again.tobytes())
            self._seat.begin_replay(environment_seed(self.seed, self.index, self._reset_count - 1), again)

    def finish_restore(self, state: State) -> str | None:
        """Show what was saved. None, or why the open episode could not be continued and ends as truncated."""
        if not self.is_begun:
            return None
        saved = _timestep(state["timestep"])
        # After a last observation only a reset follows: no episode is open, so none has to come back.
        problem = self._restored(state, saved) if _has_open_episode(state) else None
        if problem is None:
            self._show(saved)
        else:
            self._cut(saved)
        return problem

    def _note(self, error: Exception) -> None:
        """Add to the error of a simulator in this process where that was."""
        error.add_note(
            f"in environment {self.index} ({self._about.task}), "
            f"reset_count {self._reset_count}, step {self._steps} of the episode"
        )

    def _begin_reset(self, reset_count: int) -> None:
        """Begin the episode that ``reset_count`` names."""
        self._pending = "reset"
        self._reset_count, self._steps, self._actions = reset_count, 0, bytearray()
        try:
            self._seat.begin_reset(environment_seed(self.seed, self.index, reset_count - 1))
        except Exception as error:
            self._note(error)
            raise

    def _show(self, timestep: Timestep) -> None:
        self._board.write(self.index, timestep)
        self.scores, self.has_ended = timestep.scores, timestep.is_last

    def _simulator_state(self) -> State | None:
        if not self.is_begun or self.resume != "state" or self.has_ended:
            return None
        try:
            return self._seat.get_state()
        except DeadSimulatorError as death:
            self._restart(death)
            self._cut(self._board.read(self.index, {}))
            return self._simulator_state()

    def _restart(self, death: DeadSimulatorError) -> None:
        """Start the simulator again, unless it keeps dying; it may die once more while it starts."""
        if death.is_first:
            self._count(death)
        try:
            self._seat.restart()
        except DeadSimulatorError as another:
            self._restart(another)

    def _count(self, death: DeadSimulatorError) -> None:
        self.deaths += 1
        self._deaths_in_a_row += 1
        what = f"The simulator of environment {self.index} ({self._about.task}) died: {death.cause}"
        if self._deaths_in_a_row >= _MAX_DEATHS:
            own = f"\n{death.traceback}" if death.traceback else ""
            raise ReverieError(f"{what}; that was the {_MAX_DEATHS}rd time without a finished episode between.{own}")
        self.notices.append(f"{what}. It is started again, and its episode ends as truncated.")

    def _restored(self, state: State, saved: Timestep) -> str | None:
        """None when the simulator stands where it was saved, bit for bit; else why not."""
        if self.resume == "restart":
            return "can neither save its state nor repeat an episode"
        try:
            if self.resume == "state":
                self._seat.set_state(state["simulator"])
                return None
            self._seat.finish()
        except DeadSimulatorError as death:
            self._restart(death)
            return "died while it was brought back"
        is_same = _is_same(self._board.read(self.index, {}), saved)
        return None if is_same else "did not repeat its open episode from the same seed and actions"

    def _cut(self, shown: Timestep) -> None:
        """End the open episode as truncated at ``shown``, which nobody acted upon yet."""
        self._actions = bytearray()
        if shown.is_first:
            self._begin_reset(self._reset_count + 1)  # nothing was played yet, so there is no episode to end
            self.finish(None)
        else:
            self._show(replace(shown, is_last=True))
            self.is_lost = True


def _has_open_episode(state: State) -> bool:
    return int(state["reset_count"]) > 0 and not bool(state["timestep"]["is_last"])


def _truncated(seen: Observation, index: int) -> Timestep:
    obs = {key: value[index].numpy() for key, value in seen.obs.items()}
    return Timestep(obs=obs, reward=0.0, is_first=False, is_last=True, is_terminal=False)


def _timestep_state(now: Timestep) -> State:
    return {
        "obs": now.obs,
        # An array, because a number may pass through text on its way to disk, and NaN has no equal there.
        "reward": np.array(now.reward, dtype=np.float64),
        "is_first": now.is_first,
        "is_last": now.is_last,
        "is_terminal": now.is_terminal,
        "scores": {key: np.array(value, dtype=np.float64) for key, value in now.scores.items()},
    }


def _timestep(state: State) -> Timestep:
    return Timestep(
        obs={key: np.array(value) for key, value in state["obs"].items()},
        reward=float(state["reward"]),
        is_first=bool(state["is_first"]),
        is_last=bool(state["is_last"]),
        is_terminal=bool(state["is_terminal"]),
        scores={key: float(value) for key, value in state["scores"].items()},
    )


def _is_same(one: Timestep, other: Timestep) -> bool:
    """Equal bit for bit, NaN included."""
    return (
        one.obs.keys() == other.obs.keys()
        and all(_bits(value) == _bits(other.obs[key]) for key, value in one.obs.items())
        and _bits(np.float64(one.reward)) == _bits(np.float64(other.reward))
        and (one.is_first, one.is_last, one.is_terminal) == (other.is_first, other.is_last, other.is_terminal)
    )


def _bits(value: np.ndarray | np.float64) -> tuple[str, tuple[int, ...], bytes]:
    return str(value.dtype), value.shape, value.tobytes()
