"""N environments together: who is reset when, what is saved, and what a run says when it cannot go on exactly."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import count

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.environments.base import Environment, Resume, environment_seed
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.environments.vector import VectorEnvironment
from reverie.types import Observation, ReverieError, Space, Spaces, State, Timestep

LENGTH = 5


class Walk(Environment):
    """A random walk of ``LENGTH`` steps that records what it is asked. Odd seeds end terminally, even ones by time."""

    def __init__(self, resume: Resume = "replay", drift: Callable[[], float] = lambda: 0.0) -> None:
        self.task = "test_walk"
        self.spaces = Spaces(
            obs={"vector": Space(shape=(2,), dtype="float32"), "discrete": Space(shape=(), dtype="int64", classes=9)},
            action=Space(shape=(), dtype="int64", classes=3),
        )
        self.frames_per_step = 1
        self.resume = resume
        self.seeds: list[int] = []
        self.actions: list[int] = []
        self.num_closes = 0
        self._drift = drift

    def reset(self, seed: int) -> Timestep:
        self.seeds.append(seed)
        self._rng = np.random.default_rng(seed)
        self._steps, self._place = 0, float(self._drift())
        return self._timestep(reward=0.0)

    def step(self, action: np.ndarray) -> Timestep:
        if int(action) == 2:
            raise RuntimeError("the floor gave way")
        self.actions.append(int(action))
        self._steps += 1
        self._place += float(self._rng.normal()) + int(action)
        return self._timestep(reward=self._place)

    def close(self) -> None:
        self.num_closes += 1

    def get_state(self) -> State:
        bits = self._rng.bit_generator.state["state"]
        return {
            "place": self._place,
            "steps": self._steps,
            "seed": self.seeds[-1],
            "bits": {key: str(value) for key, value in bits.items()},
        }

    def set_state(self, state: State) -> None:
        self.seeds.append(state["seed"])
        self._place, self._steps = state["place"], state["steps"]
        self._rng = np.random.default_rng(0)
        bits = {key: int(value) for key, value in state["bits"].items()}
        self._rng.bit_generator.state = {**self._rng.bit_generator.state, "state": bits}

    def _timestep(self, reward: float) -> Timestep:
        is_last = self._steps == LENGTH
        obs = {"vector": np.array([self._place, self._steps], np.float32), "discrete": np.array(self._steps, np.int64)}
        is_terminal = is_last and self.seeds[-1] % 2 == 1
        return Timestep(obs=obs, reward=reward, is_first=self._steps == 0, is_last=is_last, is_terminal=is_terminal)


def walks(num_envs: int = 3, resume: Resume = "replay", seed: int = 7) -> VectorEnvironment:
    return SeparateEnvironments(lambda: Walk(resume), num_envs=num_envs, seed=seed, in_workers=False)


def ones(num_envs: int = 3) -> Tensor:
    return torch.ones(num_envs, dtype=torch.int64)


def is_equal(one: Observation, other: Observation) -> bool:
    return all(torch.equal(one.obs[key], other.obs[key]) for key in one.obs) and all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("reward", "is_first", "is_last", "is_terminal")
    )


def test_seeds_are_fixed_forever_and_differ_in_each_part() -> None:
    assert environment_seed(0, 0, 0) == 2044266242
    assert environment_seed(3, 1, 2) == environment_seed(3, 1, 2)
    drawn = {environment_seed(seed, env, reset) for seed in range(8) for env in range(8) for reset in range(8)}
    assert len(drawn) == 8**3
    assert all(0 <= one < 2**31 for one in drawn)
    with pytest.raises(ReverieError, match="0 or larger"):
        environment_seed(-1, 0, 0)


def test_the_last_observation_is_seen_and_the_next_step_resets_and_ignores_the_action() -> None:
    made: list[Walk] = []

    def make() -> Walk:
        made.append(Walk())
        return made[-1]

    envs = SeparateEnvironments(make, num_envs=2, seed=0, in_workers=False)
    seen = [envs.observe()] + [envs.step(ones(2)) for _ in range(LENGTH)]
    assert [bool(one.is_last.all()) for one in seen] == [False] * LENGTH + [True]
    fresh = envs.step(torch.full((2,), 2))  # action 2 raises where it is not ignored
    assert fresh.is_first.all()
    assert not fresh.reward.any()
    assert all(env.actions == [1] * LENGTH for env in made)
    assert [env.seeds for env in made] == [[environment_seed(0, index, reset) for reset in (0, 1)] for index in (0, 1)]
    odd = torch.tensor([env.seeds[0] % 2 == 1 for env in made])
    assert torch.equal(seen[-1].is_terminal, odd)


def test_observe_begins_once_and_returns_what_step_returned() -> None:
    envs = walks()
    first = envs.observe()
    assert first.is_first.all()
    assert is_equal(first, envs.observe())
    stepped = envs.step(ones())
    assert is_equal(stepped, envs.observe())
    assert not is_equal(first, stepped)


def test_reset_begins_the_episodes_of_another_seed() -> None:
    env = Walk()
    envs = SeparateEnvironments(lambda: env, num_envs=1, seed=0, in_workers=False)
    envs.observe()
    envs.step(ones(1))
    again = envs.reset(seed=7)
    assert again.is_first.all()
    assert env.seeds == [environment_seed(0, 0, 0), environment_seed(7, 0, 0)]


def test_the_episodes_of_another_seed_come_back() -> None:
    envs, other = walks(), walks()
    envs.reset(99)
    for _ in range(LENGTH + 3):  # into the second episode
        envs.step(ones())
    other.set_state(envs.get_state())
    assert other.inexact is None
    for _ in range(2 * LENGTH):
        assert is_equal(envs.step(ones()), other.step(ones()))


def test_returned_tensors_are_the_callers_and_have_the_spaces_dtypes() -> None:
    envs = walks()
    kept = envs.observe()
    copy = {key: value.clone() for key, value in kept.obs.items()}
    envs.step(ones())
    assert all(torch.equal(kept.obs[key], copy[key]) for key in copy)
    calm = envs.observe()
    for _ in range(LENGTH - 1):
        envs.step(ones())
    assert envs.observe().is_last.all()
    assert kept.is_first.all()
    assert not (calm.is_first | calm.is_last | calm.is_terminal).any()
    kept.obs["vector"].fill_(99.0)
    assert not (envs.observe().obs["vector"] == 99.0).any()
    assert kept.obs["vector"].dtype == torch.float32
    assert kept.obs["vector"].shape == (3, 2)
    assert kept.obs["discrete"].dtype == torch.int64
    assert kept.obs["discrete"].shape == (3,)
    assert kept.reward.dtype == torch.float32
    assert kept.is_first.dtype == kept.is_last.dtype == kept.is_terminal.dtype == torch.bool


@pytest.mark.parametrize("resume", ["state", "replay"])
@pytest.mark.parametrize("steps", [None, 0, 3, LENGTH, LENGTH + 1, LENGTH + 3])
def test_a_restored_vector_goes_on_bit_for_bit(resume: Resume, steps: int | None) -> None:
    """Saved before the first reset, at the first observation, inside, at the last one, and in the second episode."""
    envs = walks(resume=resume)
    if steps is not None:
        envs.observe()
        for _ in range(steps):
            envs.step(ones())
    state = envs.get_state()
    other = walks(resume=resume)
    other.set_state(state)
    assert other.inexact is None
    assert is_equal(envs.observe(), other.observe())
    for _ in range(2 * LENGTH):
        assert is_equal(envs.step(ones()), other.step(ones()))


def test_saved_state_is_a_copy_of_plain_data() -> None:
    envs = walks()
    envs.observe()
    envs.step(ones())
    state = envs.get_state()
    leaves = list(plain_leaves(state))
    assert leaves
    assert all(isinstance(leaf, np.ndarray | int | float | str | bool) for leaf in leaves)
    before = state["envs"]["0"]["actions"].copy()
    envs.step(ones())
    assert np.array_equal(state["envs"]["0"]["actions"], before)


def plain_leaves(tree: object) -> list[object]:
    if isinstance(tree, dict):
        return [leaf for value in tree.values() for leaf in plain_leaves(value)]
    return [tree]


def test_without_its_actions_an_episode_does_not_come_back() -> None:
    envs = walks()
    envs.observe()
    envs.step(ones())
    state = envs.get_state()
    state["envs"]["1"]["actions"] = state["envs"]["1"]["actions"][:0]
    other = walks()
    other.set_state(state)
    assert other.inexact is not None
    assert "environment 1 (of 3)" in other.inexact


def test_a_simulator_that_does_not_repeat_ends_its_episode_as_truncated_and_says_so() -> None:
    drift = count()

    def make() -> Walk:
        return Walk(drift=lambda: float(next(drift)))

    envs = SeparateEnvironments(make, num_envs=2, seed=0, in_workers=False)
    envs.observe()
    saved = envs.step(ones(2))
    other = SeparateEnvironments(make, num_envs=2, seed=0, in_workers=False)
    other.set_state(envs.get_state())
    assert other.inexact is not None
    assert "not exact" in other.inexact
    assert "did not repeat" in other.inexact
    cut = other.observe()
    assert torch.equal(cut.obs["vector"], saved.obs["vector"])
    assert torch.equal(cut.reward, saved.reward)
    assert cut.is_last.all()
    assert not cut.is_terminal.any()
    assert other.step(ones(2)).is_first.all()
    assert other.get_state()["envs"]["0"]["reset_count"] == 2


def test_a_first_observation_that_does_not_repeat_begins_a_new_episode() -> None:
    drift = count()
    envs = SeparateEnvironments(lambda: Walk(drift=lambda: float(next(drift))), num_envs=1, seed=0, in_workers=False)
    envs.observe()
    envs.set_state(envs.get_state())
    assert envs.inexact is not None
    seen = envs.observe()
    assert seen.is_first.all()
    assert not seen.is_last.any()


def test_restart_is_never_called_exact() -> None:
    envs = walks(resume="restart")
    envs.observe()
    envs.step(ones())
    state = envs.get_state()
    assert "actions" not in state["envs"]["0"]
    envs.set_state(state)
    assert envs.inexact is not None
    assert "neither save its state nor repeat" in envs.inexact
    assert envs.observe().is_last.all()
    assert envs.step(ones()).is_first.all()


def test_restart_loses_nothing_where_no_episode_is_open() -> None:
    envs = walks(resume="restart")
    seen = [envs.observe()] + [envs.step(ones()) for _ in range(LENGTH)]
    other = walks(resume="restart")
    other.set_state(envs.get_state())
    assert other.inexact is None
    assert is_equal(other.observe(), seen[-1])
    assert is_equal(other.step(ones()), envs.step(ones()))


def test_an_exact_restore_clears_the_sentence_of_an_earlier_one() -> None:
    envs = walks()
    envs.observe()
    envs.step(ones())
    good, bad = envs.get_state(), envs.get_state()
    bad["envs"]["0"]["actions"] = bad["envs"]["0"]["actions"][:0]
    envs.set_state(bad)
    assert envs.inexact is not None
    envs.set_state(good)
    assert envs.inexact is None


def test_a_failing_simulator_keeps_its_traceback_and_says_where_it_was() -> None:
    envs = walks()
    envs.observe()
    envs.step(ones())
    with pytest.raises(RuntimeError, match="the floor gave way") as caught:
        envs.step(torch.tensor([1, 2, 1]))
    (note,) = caught.value.__notes__
    assert "environment 1 (test_walk)" in note
    assert "reset_count 1" in note
    assert "step 2" in note


@pytest.mark.parametrize("action", [torch.ones(2, dtype=torch.int64), torch.ones(3), torch.ones(3, 1).long()])
def test_a_wrong_action_is_refused(action: Tensor) -> None:
    envs = walks()
    envs.observe()
    with pytest.raises(ValueError, match=r"int64 of shape \(3,\)"):
        envs.step(action)


def test_a_state_of_another_size_is_refused() -> None:
    with pytest.raises(ReverieError, match="holds 2 environments of test_walk, but this run has 3"):
        walks(3).set_state(walks(2).get_state())


def test_a_vector_of_nothing_is_refused() -> None:
    with pytest.raises(ReverieError, match="at least 1"):
        walks(0)


def test_copies_with_different_spaces_are_refused_and_closed() -> None:
    made: list[Walk] = []

    def make() -> Walk:
        made.append(Walk())
        made[-1].spaces = Spaces(obs={}, action=Space(shape=(), dtype="int64", classes=2 + len(made)))
        return made[-1]

    with pytest.raises(ReverieError, match="Copy 1 of test_walk has other spaces"):
        SeparateEnvironments(make, num_envs=2, seed=0, in_workers=False)
    assert [env.num_closes for env in made] == [1, 1]


def test_close_reaches_every_environment_even_when_a_later_one_cannot_be_made() -> None:
    made: list[Walk] = []

    def make() -> Walk:
        if len(made) == 2:
            raise RuntimeError("no third one")
        made.append(Walk())
        return made[-1]

    with pytest.raises(RuntimeError, match="no third one"):
        SeparateEnvironments(make, num_envs=3, seed=0, in_workers=False)
    assert [env.num_closes for env in made] == [1, 1]


def test_seconds_grow_with_the_work_and_no_thread_is_left() -> None:
    threads = threading.active_count()
    envs = walks()
    assert envs.seconds == 0.0
    envs.observe()
    after_reset = envs.seconds
    envs.step(ones())
    assert envs.seconds > after_reset > 0.0
    envs.close()
    assert threading.active_count() <= threads
