"""Simulators of N environments in one object, as a vector environment: rows, seeds, and what a resume does to them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.parallel.batched import BatchedEnvironments
from reverie.types import Observation, ReverieError, Space, Spaces, State

NUM_ENVS = 3


class Counters(BatchSimulator):
    """Environment i counts to its length; one of odd seed ends in a terminal, one of even seed by a time limit."""

    def __init__(self, *, seed: int, num_envs: int = NUM_ENVS) -> None:
        self.task, self.num_envs, self.frames_per_step = "counters_up", num_envs, 2
        self.spaces = Spaces(
            obs={"vector": Space(shape=(2,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=4)
        )
        self.seed = seed
        self.closed = 0
        self.length = np.arange(num_envs) + 3
        self.count = np.zeros(num_envs, np.int64)
        self.actions: list[list[int]] = []

    def reset(self) -> BatchTimestep:
        return self._timestep(np.ones(self.num_envs, bool))

    def step(self, action: np.ndarray) -> BatchTimestep:
        self.actions.append(action.tolist())
        is_first = self.count == self.length
        self.count = np.where(is_first, 0, self.count + 1)
        return self._timestep(is_first)

    def close(self) -> None:
        self.closed += 1

    def _timestep(self, is_first: np.ndarray) -> BatchTimestep:
        is_last = self.count == self.length
        return BatchTimestep(
            obs={"vector": np.stack([self.count, np.full(self.num_envs, self.seed % 1000)], -1).astype(np.float32)},
            reward=np.where(is_first, 0.0, 1.0).astype(np.float32),
            is_first=is_first,
            is_last=is_last,
            is_terminal=is_last & (self.seed % 2 == 1),
        )


def made(seed: int = 0) -> tuple[BatchedEnvironments, list[Counters]]:
    simulators: list[Counters] = []

    def make(given: int) -> Counters:
        simulators.append(Counters(seed=given))
        return simulators[-1]

    return BatchedEnvironments(make, seed=seed), simulators


def stepped(envs: BatchedEnvironments, steps: int) -> list[Observation]:
    return [envs.step(torch.full((NUM_ENVS,), index % 4)) for index in range(steps)]


def counts(seen: Observation) -> list[int]:
    return seen.obs["vector"][:, 0].int().tolist()


def assert_rows(seen: list[Observation]) -> None:
    for now, after in pairwise(seen):
        assert torch.equal(after.is_first, now.is_last)
    for one in seen:
        assert not (one.is_first & one.is_last).any()
        assert not (one.is_terminal & ~one.is_last).any()
        assert not one.reward[one.is_first].any()


def saved_after(steps: int, seed: int = 0) -> State:
    envs, _ = made(seed)
    envs.observe()
    stepped(envs, steps)
    return envs.get_state()


def test_rows_follow_each_other_and_nothing_is_lost() -> None:
    envs, simulators = made()
    first = envs.observe()
    assert first.is_first.all()
    seen = [first, *stepped(envs, 20)]
    assert_rows(seen)
    assert [counts(one)[0] for one in seen[:9]] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert simulators[0].actions[:3] == [[0] * 3, [1] * 3, [2] * 3]
    assert (envs.task, envs.num_envs, envs.frames_per_step, envs.deaths) == ("counters_up", 3, 2, 0)
    assert envs.seconds > 0


def test_the_first_step_without_a_look_begins_the_episodes() -> None:
    envs, simulators = made()
    assert envs.step(torch.zeros(NUM_ENVS, dtype=torch.int64)).is_first.all()
    assert simulators[0].actions == []


def test_a_seed_gives_the_same_simulator_and_a_reset_another() -> None:
    envs, simulators = made(seed=1)
    envs.observe()
    stepped(envs, 2)
    assert envs.reset(2).is_first.all()
    assert simulators[0].closed == 1
    assert simulators[0].seed == made(seed=1)[1][0].seed != simulators[1].seed
    assert simulators[1].seed == made(seed=2)[1][0].seed


def test_a_resume_ends_every_open_episode_and_begins_new_ones() -> None:
    state = saved_after(2)
    envs, simulators = made()
    envs.set_state(state)
    assert envs.inexact is not None
    assert "not exact" in envs.inexact
    shown = envs.observe()
    assert counts(shown) == [2, 2, 2]
    assert shown.is_last.all()
    assert not shown.is_terminal.any()
    assert shown.reward.tolist() == [1.0] * 3
    seen = [shown, *stepped(envs, 12)]
    assert_rows(seen)
    assert [counts(one) for one in seen[1:3]] == [[0, 0, 0], [1, 1, 1]]
    assert len({simulator.seed for simulator in simulators}) == 2  # other episodes than those at the beginning
    again, others = made()
    again.set_state(envs.get_state())
    assert len({*(one.seed for one in simulators), others[-1].seed}) == 3  # and others again


def test_a_resume_keeps_an_end_that_was_an_end() -> None:
    seed = next(seed for seed in range(50) if made(seed)[1][0].seed % 2 == 1)
    envs, _ = made(seed)
    envs.set_state(saved_after(3, seed))
    shown = envs.observe()
    assert shown.is_last.all()
    assert shown.is_terminal.tolist() == [True, False, False]


def test_a_resume_shows_a_new_beginning_where_nothing_was_played() -> None:
    """After four steps environment 0 is at a first observation, the others are inside an episode or at its end."""
    envs, simulators = made()
    envs.set_state(saved_after(4))
    shown = envs.observe()
    assert shown.is_first.tolist() == [True, False, False]
    assert shown.is_last.tolist() == [False, True, True]
    assert shown.obs["vector"][0, 1] == simulators[-1].seed % 1000
    seen = [shown, *stepped(envs, 12)]
    assert_rows(seen)
    assert counts(seen[1]) == [1, 1, 1]
    assert seen[1].is_first.tolist() == [False, True, True]
    assert seen[1].reward.tolist() == [1.0, 0.0, 0.0]


def test_a_run_that_had_not_begun_goes_on_exactly() -> None:
    fresh, simulators = made()
    state = fresh.get_state()
    envs, others = made()
    envs.set_state(state)
    assert envs.inexact is None
    assert others[-1].seed == simulators[0].seed
    assert envs.observe().is_first.all()


def test_what_was_given_does_not_change() -> None:
    envs, _ = made()
    first = envs.observe()
    state = envs.get_state()
    stepped(envs, 2)
    assert counts(first) == [0, 0, 0]
    assert not state["timestep"]["obs"]["vector"][:, 0].any()


def test_refusals() -> None:
    envs, _ = made()
    envs.observe()
    with pytest.raises(ValueError, match="must be int64 of shape"):
        envs.step(torch.zeros(NUM_ENVS))
    few = BatchedEnvironments(lambda seed: Counters(seed=seed, num_envs=2), seed=0)
    with pytest.raises(ReverieError, match="holds 3 environments of counters_up, but this run has 2"):
        few.set_state(envs.get_state())


def test_close_reaches_the_simulator() -> None:
    envs, simulators = made()
    envs.close()
    assert simulators[0].closed == 1
