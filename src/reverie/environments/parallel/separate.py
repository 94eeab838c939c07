"""N simulators with lives of their own: in this process, or spread over worker processes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.environments.base import Environment
from reverie.environments.parallel.board import Board, shared_memory
from reverie.environments.parallel.fresh_tensors import FreshTensors
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.seat import DeadSimulatorError, InlineSeat, Introduction, Seat
from reverie.environments.parallel.slot import Slot
from reverie.environments.parallel.worker import WorkerProcess, WorkerSeat
from reverie.environments.vector import VectorEnvironment
from reverie.runtime.processors import processor_shares, usable_processors
from reverie.types import Observation, ReverieError, State

_NO_SCORES: Mapping[int, Mapping[str, float]] = {}
_NOBODY: frozenset[int] = frozenset()
_AWAKE_SECONDS = 100e-6
"""How long a process that waits for another one looks before it sleeps: about what waking it costs both of them."""


class SeparateEnvironments(VectorEnvironment):
    """Comes back after a resume as each simulator can: by its state, by replay of the open episode, or by restart."""

    def __init__(
        self,
        make: Callable[[], Environment] | Maker,
        *,
        num_envs: int,
        seed: int,
        in_workers: bool,
        num_workers: int | None = None,
    ) -> None:
        """``num_workers`` processes share the environments; None makes as many as there are processors."""
        if num_envs < 1:
            raise ReverieError(f"The number of environments is {num_envs}, but at least 1 is needed.")
        if num_workers is not None and num_workers < 1:
            raise ReverieError(f"The number of workers is {num_workers}, but at least 1 is needed.")
        self.num_envs = num_envs
        self._num_workers = min(num_envs, num_workers or usable_processors())
        self._make = make
        self._memory = shared_memory()
        self._seats: list[Seat] = []
        self._processes: list[WorkerProcess] = []
        self._awake_seconds = 0.0
        self._slots: list[Slot] = []
        self._shown: Observation | None = None
        self._at_work: _Work | None = None
        """What the simulators were last asked for, until somebody waits for it."""
        self._no_flags = torch.zeros(num_envs, dtype=torch.bool)
        """Shown in the place of all flags while none is set, which is nearly always: nobody writes into it."""
        try:
            introductions = self._seated(in_workers)
            first = introductions[0]
            self.task, self.spaces, self.frames_per_step = first.task, first.spaces, first.frames_per_step
            self.drawn_by = first.drawn_by
            _require_equal(introductions)
            self._board = Board(self.spaces, num_envs=num_envs, memory=self._memory.fileno())
            self._fresh_obs = {key: FreshTensors(rows.shape, rows.dtype) for key, rows in self._board.obs.items()}
            self._fresh_rewards = FreshTensors((num_envs,), np.dtype(np.float32))
            for index, seat in enumerate(self._seats):
                self._slots.append(Slot(seat, index=index, about=introductions[index], board=self._board, seed=seed))
        except BaseException:
            self.close()
            raise

    def observe(self) -> Observation:
        if self._at_work is not None:
            self._wait()
        if self._shown is None:
            if unbegun := [slot for slot in self._slots if not slot.is_begun]:
                self._advance(unbegun)
            self._shown = self._observation()
        return self._shown

    def begin_step(self, action: Tensor) -> None:
        native = self.checked_actions(action)
        self.observe()  # what was shown is needed if a simulator dies
        self._board.action[...] = native
        self._begin(self._slots)

    def reset(self, seed: int) -> Observation:
        self._wait()
        for slot in self._slots:
            slot.forget(seed)
        self._advance(self._slots)
        return self.observe()

    def get_state(self) -> State:
        self._wait()
        deaths = self.deaths
        state: State = {"envs": {str(slot.index): slot.get_state() for slot in self._slots}}
        if self.deaths != deaths:
            self._shown = None  # a simulator that died while it was saved shows the end of its episode
        return state

    def set_state(self, state: State) -> None:
        saved = state["envs"]
        if len(saved) != self.num_envs:
            raise ReverieError(
                f"The saved state holds {len(saved)} environments of {self.task}, but this run has {self.num_envs}: "
                "use the same number of environments as the saved run."
            )
        self._wait()
        for slot in self._slots:
            slot.begin_restore(saved[str(slot.index)])
        self._flush()
        problems = {slot.index: slot.finish_restore(saved[str(slot.index)]) for slot in self._slots}
        self.inexact = self._inexact_sentence({index: why for index, why in problems.items() if why})
        self._shown = None

    def close(self) -> None:
        """When one simulator fails to close, the others are closed all the same."""
        failures: list[Exception] = []
        while self._seats:
            try:
                self._seats.pop().close()
            except Exception as error:
                failures.append(error)
        self._memory.close()
        if failures:
            raise failures[-1]

    def notices(self) -> list[str]:
        new = [notice for slot in self._slots for notice in slot.notices]
        for slot in self._slots:
            slot.notices.clear()
        return new

    def summary(self, mean_scores: Mapping[str, float]) -> Mapping[str, float]:
        return self._make.summary(mean_scores) if isinstance(self._make, Maker) else {}

    @property
    def deaths(self) -> int:
        return sum(slot.deaths for slot in self._slots)

    def _seated(self, in_workers: bool) -> list[Introduction]:
        """Starts the simulators, side by side where they have processes of their own."""
        make = self._make
        if not in_workers:
            for _ in range(self.num_envs):
                self._seats.append(InlineSeat(make))
        else:
            assert isinstance(make, Maker), "a worker process is told by name what to make"
            borders = [self.num_envs * worker // self._num_workers for worker in range(self._num_workers + 1)]
            shares = processor_shares(self._num_workers)
            self._awake_seconds = _AWAKE_SECONDS if all(shares) else 0.0
            for (first, last), share in zip(pairwise(borders), shares, strict=True):
                process = WorkerProcess(
                    make,
                    count=last - first,
                    memory=self._memory.fileno(),
                    processors=share,
                    # The first one shares its processor with this process, which must find it free.
                    awake_seconds=self._awake_seconds if first > 0 else 0.0,
                )
                self._processes.append(process)
                self._seats.extend(WorkerSeat(process, number) for number in range(last - first))
                if first == 0 and make.needs_rendering:
                    # The first one finds out how this machine draws; the others find the answer where it left it.
                    _introduced(self._seats[0])
        return [_introduced(seat) for seat in self._seats]

    def _advance(self, slots: Sequence[Slot]) -> None:
        self._begin(slots)
        self._wait()

    def _begin(self, slots: Sequence[Slot]) -> None:
        start = time.perf_counter()
        previous, self._shown = self._shown, None
        for slot in slots:
            slot.begin()
        self._flush()
        self._at_work = _Work(slots, previous)
        self.seconds += time.perf_counter() - start

    def _wait(self) -> None:
        if self._at_work is None:
            return
        start = time.perf_counter()
        work, self._at_work = self._at_work, None
        if not self._is_calm(work.previous):
            self._finish(work.slots, work.previous)
        self.seconds += time.perf_counter() - start

    def _is_calm(self, previous: Observation | None) -> bool:
        """Wait for all workers. Whether no episode ends or begins, before or now: then a slot has nothing to finish."""
        is_done = [
            # Where one has finished, a processor is free to wait on for the others.
            process.is_all_done(awake_seconds=self._awake_seconds if index else 0.0)
            for index, process in enumerate(self._processes)
        ]
        was_calm = previous is not None and previous.is_first is self._no_flags
        if not was_calm or not all(is_done) or self._board.has_flags:
            return False
        for process in self._processes:
            process.skip_answers()
        return True

    def _finish(self, slots: Sequence[Slot], previous: Observation | None) -> None:
        refusal: ReverieError | None = None
        for slot in slots:  # all of them: an answer that stays unread would be taken for the next one
            try:
                slot.finish(previous)
            except ReverieError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _flush(self) -> None:
        # The first one last: it begins when this process sleeps, the others at once.
        for process in reversed(self._processes):
            process.flush()

    def _observation(self) -> Observation:
        board, none = self._board, self._no_flags
        obs = {key: fresh.filled(board.obs[key]) for key, fresh in self._fresh_obs.items()}
        reward = self._fresh_rewards.filled(board.reward)
        if not board.has_flags:
            return Observation(
                obs=obs, reward=reward, is_first=none, is_last=none, is_terminal=none, scores=_NO_SCORES, lost=_NOBODY
            )
        ended = [slot for slot in self._slots if slot.has_ended]
        return Observation(
            obs=obs,
            reward=reward,
            is_first=torch.from_numpy(board.is_first.copy()),
            is_last=torch.from_numpy(board.is_last.copy()),
            is_terminal=torch.from_numpy(board.is_terminal.copy()),
            scores={slot.index: slot.scores for slot in ended},
            lost=frozenset(slot.index for slot in ended if slot.is_lost),
        )

    def _inexact_sentence(self, problems: Mapping[int, str]) -> str | None:
        if not problems:
            return None
        which, why = ", ".join(map(str, problems)), next(iter(problems.values()))
        return (
            f"The resumed run is not exact: {self.task} {why}, "
            f"so an episode that was open in environment {which} (of {self.num_envs}) ends as truncated."
        )


class _Work(NamedTuple):
    slots: Sequence[Slot]
    previous: Observation | None
    """What was shown before it."""


def _introduced(seat: Seat) -> Introduction:
    try:
        return seat.introduction()
    except DeadSimulatorError as death:
        raise ReverieError(f"A simulator could not be started: {death.cause}.\n{death.traceback}".strip()) from death


def _require_equal(introductions: list[Introduction]) -> None:
    first = introductions[0]
    for index, one in enumerate(introductions):
        if one.spaces != first.spaces:
            raise ReverieError(
                f"Copy {index} of {one.task} has other spaces than copy 0: "
                "make the environment give the same spaces each time."
            )
