"""A simulator of N environments as the rest of Reverie sees it. What was open when a run stopped does not come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from reverie.environments.base import environment_seed
from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.vector import VectorEnvironment
from reverie.types import Observation, ReverieError, State


class BatchedEnvironments(VectorEnvironment):
    """``make`` gets a seed of 31 bits and makes the simulator, once at first and again after each reset or resume.

    The simulator lives in a thread, which alone makes it, asks it and closes it.
    """

    def __init__(self, make: Callable[[int], BatchSimulator], *, seed: int) -> None:
        self._make = make
        self._seed = seed
        self._restarts = 0
        """Simulators made before this one for the same seed: each resume needs new episodes."""
        self._shown: BatchTimestep | None = None
        self._unseen: np.ndarray | None = None
        """After a resume: environments that have a first observation which was not shown yet."""
        self._first: BatchTimestep | None = None
        """After a resume: the first observations of the new simulator."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="simulator")
        self._at_work: Future[BatchTimestep] | None = None
        """A step that nobody has waited for."""
        self._is_closed = False
        self._simulator = self._made()
        self.task = self._simulator.task
        self.spaces = self._simulator.spaces
        self.frames_per_step = self._simulator.frames_per_step
        self.num_envs = self._simulator.num_envs

    def observe(self) -> Observation:
        return _observation(self._current())

    def begin_step(self, action: Tensor) -> None:
        if self._shown is None and self._at_work is None:
            self._shown = self._timed(self._simulator.reset)
            return
        native = self.checked_actions(action).copy()
        self._current()
        if self._unseen is not None and self._first is not None and self._unseen.all():
            self._shown, self._unseen, self._first = self._first, None, None
        else:
            self._at_work = self._thread.submit(self._simulator.step, native)

    def reset(self, seed: int) -> Observation:
        self._seed, self._restarts = seed, 0
        self._renew()
        return self.observe()

    def get_state(self) -> State:
        """The current timestep alone."""
        state: State = {"seed": self._seed, "restarts": self._restarts}
        if self._shown is not None or self._at_work is not None:
            now = self._current()
            flags = {"is_first": now.is_first, "is_last": now.is_last, "is_terminal": now.is_terminal}
            arrays = {"reward": now.reward, **flags}
            state["timestep"] = {
                "obs": {key: value.copy() for key, value in now.obs.items()},
                **{key: value.copy() for key, value in arrays.items()},
            }
        return state

    def set_state(self, state: State) -> None:
        """End every open episode as truncated at the saved observation; the next step shows new first observations."""
        self.inexact = None
        self._seed, self._restarts = int(state.get("seed", self._seed)), int(state["restarts"])
        if "timestep" not in state:
            self._renew()
            return
        saved = _timestep(state["timestep"])
        if len(saved.reward) != self.num_envs:
            raise ReverieError(
                f"The saved state holds {len(saved.reward)} environments of {self.task}, but this run has "
                f"{self.num_envs}: use the same number of environments as the saved run."
            )
        self._restarts += 1
        self._renew()
        self._cut(saved)
        self.inexact = (
            f"The resumed run is not exact: the {self.num_envs} environments of {self.task} live in one object that "
            "cannot save its state, so their open episodes end as truncated and new ones begin."
        )

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._thread.submit(self._simulator.close).result()  # after a step that is still at work
            self._thread.shutdown()

    def _current(self) -> BatchTimestep:
        """What is shown now. Waits for the simulator."""
        if self._at_work is not None:
            work, self._at_work = self._at_work, None
            now = self._waited_for(work)
            self._shown = now if self._unseen is None else _begun(now, self._unseen)
            self._unseen = self._first = None
        elif self._shown is None:
            self._shown = self._timed(self._simulator.reset)
        assert self._shown is not None
        return self._shown

    def _made(self) -> BatchSimulator:
        return self._thread.submit(self._make, environment_seed(self._seed, 0, self._restarts)).result()

    def _renew(self) -> None:
        self._at_work = None
        self._thread.submit(self._simulator.close).result()
        self._simulator = self._made()
        self._shown = self._unseen = self._first = None

    def _cut(self, saved: BatchTimestep) -> None:
        """Show where each episode was cut. Where nothing was played yet, there is none to cut: show a new beginning.

        Since all environments step together, the others take one step that nobody sees while such a one takes its
        first, and begin with the observation after it.
        """
        self._first = self._timed(self._simulator.reset)
        fresh = saved.is_first
        self._unseen = ~fresh
        obs = {key: value.copy() for key, value in saved.obs.items()}
        for key, value in self._first.obs.items():
            obs[key][fresh] = value[fresh]
        self._shown = replace(saved, obs=obs, is_last=~fresh)

    def _timed(self, work: Callable[[], BatchTimestep]) -> BatchTimestep:
        return self._waited_for(self._thread.submit(work))

    def _waited_for(self, work: Future[BatchTimestep]) -> BatchTimestep:
        start = time.perf_counter()
        try:
            return work.result()
        finally:
            self.seconds += time.perf_counter() - start


def _begun(now: BatchTimestep, where: np.ndarray) -> BatchTimestep:
    """``now``, told as the first timestep of an episode in the environments of ``where``."""
    return replace(
        now,
        reward=np.where(where, np.float32(0.0), now.reward),
        is_first=now.is_first | where,
        is_terminal=now.is_terminal & ~where,
    )


def _observation(now: BatchTimestep) -> Observation:
    return Observation(
        obs={key: torch.from_numpy(value) for key, value in now.obs.items()},
        reward=torch.from_numpy(now.reward),
        is_first=torch.from_numpy(now.is_first),
        is_last=torch.from_numpy(now.is_last),
        is_terminal=torch.from_numpy(now.is_terminal),
    )


def _timestep(state: State) -> BatchTimestep:
    return BatchTimestep(
        obs={key: np.array(value) for key, value in state["obs"].items()},
        reward=np.array(state["reward"]),
        is_first=np.array(state["is_first"]),
        is_last=np.array(state["is_last"]),
        is_terminal=np.array(state["is_terminal"]),
    )
