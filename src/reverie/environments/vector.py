"""N environments side by side in this process, stepped together and saved together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from reverie.environments.base import Environment, environment_seed
from reverie.types import Observation, ReverieError, Spaces, State, Timestep


@dataclass(slots=True)
class _Slot:
    """One environment and where it stands."""

    index: int
    environment: Environment
    reset_count: int = 0
    """Episodes begun so far; the open one has the seed of ``reset_count - 1``."""
    steps: int = 0
    """Agent steps taken in the open episode."""
    actions: list[np.ndarray] = field(default_factory=list)
    """The open episode's actions, kept only where it comes back by replay."""
    current: Timestep | None = None


class VectorEnvironment:
    """N copies of one environment. Every tensor that goes in or out lies on the CPU and has a leading axis N.

    An environment whose current observation ``is_last`` is reset by the next ``step``, which ignores its action: the
    last observation of an episode is seen like any other, and no row is lost. Episodes are seeded by
    ``(seed, env_index, reset_count)``. Returned tensors are fresh, so callers may keep them.
    """

    def __init__(self, make: Callable[[], Environment], *, num_envs: int, seed: int) -> None:
        if num_envs < 1:
            raise ReverieError(f"The number of environments is {num_envs}, but at least 1 is needed.")
        self._seed = seed
        self._slots: list[_Slot] = []
        self.seconds = 0.0
        """Wall time spent inside the simulators so far."""
        self.inexact: str | None = None
        """After ``set_state``: None, or the sentence that says why the run does not go on exactly."""
        try:
            for index in range(num_envs):
                self._slots.append(_Slot(index, make()))
        except BaseException:
            self.close()
            raise
        first = self._slots[0].environment
        self.task: str = first.task
        self.spaces: Spaces = first.spaces
        self.frames_per_step: int = first.frames_per_step
        self._require_equal_spaces()

    @property
    def num_envs(self) -> int:
        return len(self._slots)

    def observe(self) -> Observation:
        """The current observation of all environments. The first call begins the first episodes."""
        for slot in self._slots:
            if slot.current is None:
                self._begin(slot)
        return self._observation()

    def step(self, action: Tensor) -> Observation:
        """Step every environment with its action, or reset it where its current observation was the last."""
        for slot, one in zip(self._slots, self._actions(action), strict=True):
            if slot.current is None or slot.current.is_last:
                self._begin(slot)
            else:
                self._advance(slot, one)
        return self._observation()

    def reset(self, seed: int) -> Observation:
        """Begin anew everywhere, with the episodes of another seed; what came before leaves no trace."""
        self._seed = seed
        for slot in self._slots:
            slot.reset_count = 0
            self._begin(slot)
        return self._observation()

    def get_state(self) -> State:
        """Everything the environments need to go on: nested dicts of arrays, numbers and strings."""
        return {"envs": {str(slot.index): _slot_state(slot) for slot in self._slots}}

    def set_state(self, state: State) -> None:
        """Continue where ``get_state`` was called; where that cannot be done, cut the episode and set ``inexact``."""
        saved = state["envs"]
        if len(saved) != self.num_envs:
            raise ReverieError(
                f"The saved state holds {len(saved)} environments of {self.task}, but this run has {self.num_envs}: "
                "use the same number of environments as the saved run."
            )
        self.inexact = None
        unlike = [slot.index for slot in self._slots if not self._restore(slot, saved[str(slot.index)])]
        if unlike:
            self.inexact = self._inexact_sentence(unlike)

    def close(self) -> None:
        """Close every simulator; when one of them fails to close, the others are closed all the same."""
        failures: list[Exception] = []
        for slot in self._slots:
            try:
                slot.environment.close()
            except Exception as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _require_equal_spaces(self) -> None:
        for slot in self._slots[1:]:
            if slot.environment.spaces != self.spaces:
                self.close()
                raise ReverieError(
                    f"Copy {slot.index} of {self.task} has other spaces than copy 0: "
                    "make the environment give the same spaces each time."
                )

    def _actions(self, action: Tensor) -> list[np.ndarray]:
        """One array per environment in the dtype of the action space, sharing no memory with the caller."""
        space = self.spaces.action
        expected = (self.num_envs, *space.shape)
        if tuple(action.shape) != expected or action.is_floating_point() != (space.dtype == "float32"):
            raise ValueError(
                f"the action for {self.task} must be {space.dtype} of shape {expected}, "
                f"not {action.dtype} of shape {tuple(action.shape)}"
            )
        dtype = torch.float32 if space.dtype == "float32" else torch.int64
        return [np.array(one) for one in action.detach().to(dtype).numpy()]

    def _begin(self, slot: _Slot) -> None:
        slot.reset_count += 1
        self._reset(slot)

    def _reset(self, slot: _Slot) -> None:
        """Begin the episode that ``reset_count`` names."""
        slot.steps = 0
        slot.actions = []
        with self._inside(slot):
            slot.current = slot.environment.reset(environment_seed(self._seed, slot.index, slot.reset_count - 1))

    def _advance(self, slot: _Slot, action: np.ndarray) -> None:
        slot.steps += 1
        if slot.environment.resume == "replay":
            slot.actions.append(action.copy())  # a simulator may write into the array it is given
        with self._inside(slot):
            slot.current = slot.environment.step(action)

    @contextmanager
    def _inside(self, slot: _Slot) -> Iterator[None]:
        """Time what happens inside a simulator, and say where it was when it failed."""
        start = time.perf_counter()
        try:
            yield
        except Exception as error:
            error.add_note(
                f"in environment {slot.index} of {self.num_envs} ({self.task}), "
                f"reset_count {slot.reset_count}, step {slot.steps} of the episode"
            )
            raise
        finally:
            self.seconds += time.perf_counter() - start

    def _observation(self) -> Observation:
        now = [slot.current for slot in self._slots if slot.current is not None]
        return Observation(
            obs={key: torch.from_numpy(np.stack([one.obs[key] for one in now])) for key in self.spaces.obs},
            reward=torch.tensor([one.reward for one in now], dtype=torch.float32),
            is_first=torch.tensor([one.is_first for one in now]),
            is_last=torch.tensor([one.is_last for one in now]),
            is_terminal=torch.tensor([one.is_terminal for one in now]),
        )

    def _restore(self, slot: _Slot, state: State) -> bool:
        """Bring one environment back. False when its episode could not be continued as it was."""
        slot.reset_count = int(state["reset_count"])
        slot.steps = int(state["steps"])
        slot.actions = []
        slot.current = None
        if slot.reset_count == 0:
            return True
        saved = _timestep(state["timestep"])
        if slot.environment.resume == "state":
            slot.environment.set_state(state["simulator"])
            slot.current = saved
            return True
        is_replay = slot.environment.resume == "replay"
        # After a last observation only a reset follows: no episode is open, so none has to come back.
        if saved.is_last or (is_replay and self._is_replayed(slot, state["actions"], saved)):
            slot.current = saved
            return True
        self._cut(slot, saved)
        return False

    def _is_replayed(self, slot: _Slot, actions: np.ndarray, saved: Timestep) -> bool:
        """Play the open episode again; True when it arrives at the saved timestep, bit for bit."""
        self._reset(slot)
        for action in np.array(actions, dtype=self.spaces.action.dtype):
            if slot.current is None or slot.current.is_last:
                return False
            self._advance(slot, np.array(action))
        return slot.current is not None and _is_same(slot.current, saved)

    def _cut(self, slot: _Slot, saved: Timestep) -> None:
        """End the open episode as truncated at the saved observation; the next step begins a new one."""
        slot.actions = []
        if saved.is_first:
            self._begin(slot)  # nothing was played yet, so there is no episode to end
        else:
            slot.current = replace(saved, is_last=True)

    def _inexact_sentence(self, unlike: list[int]) -> str:
        which = ", ".join(str(index) for index in unlike)
        promises_replay = self._slots[unlike[0]].environment.resume == "replay"
        why = (
            "did not repeat its open episode from the same seed and actions"
            if promises_replay
            else "can neither save its state nor repeat an episode"
        )
        return (
            f"The resumed run is not exact: {self.task} {why}, "
            f"so an episode that was open in environment {which} (of {self.num_envs}) ends as truncated."
        )


def _slot_state(slot: _Slot) -> State:
    state: State = {"reset_count": slot.reset_count, "steps": slot.steps}
    if slot.current is None:
        return state
    now = slot.current
    state["timestep"] = {
        "obs": {key: value.copy() for key, value in now.obs.items()},
        # An array, because a number may pass through text on its way to disk, and NaN has no equal there.
        "reward": np.array(now.reward, dtype=np.float64),
        "is_first": now.is_first,
        "is_last": now.is_last,
        "is_terminal": now.is_terminal,
    }
    if slot.environment.resume == "state":
        state["simulator"] = slot.environment.get_state()
    elif slot.environment.resume == "replay":
        space = slot.environment.spaces.action
        state["actions"] = np.array(slot.actions, dtype=space.dtype).reshape(len(slot.actions), *space.shape)
    return state


def _timestep(state: State) -> Timestep:
    return Timestep(
        obs={key: np.array(value) for key, value in state["obs"].items()},
        reward=float(state["reward"]),
        is_first=bool(state["is_first"]),
        is_last=bool(state["is_last"]),
        is_terminal=bool(state["is_terminal"]),
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
