"""Evaluation: how many episodes count, on which seeds, and where the rows go."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.environments.base import Environment
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.orchestration.evaluator import EvaluationConfig, Evaluator
from reverie.runtime.acting import Acting
from reverie.runtime.rng import RandomStreams
from reverie.types import Carry, Mode, Observation, ReverieError, Space, Spaces, Timestep

SPACES = Spaces(obs={"vector": Space(shape=(1,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=2))

CPU = torch.device("cpu")


class Fixed(Environment):
    """Episodes of a fixed length, each step worth 1; the first observation tells the episode's seed."""

    def __init__(self, length: int) -> None:
        self.task, self.spaces, self.frames_per_step, self.resume = "test_fixed", SPACES, 1, "replay"
        self._length = length

    def reset(self, seed: int) -> Timestep:
        self._steps, self._seed = 0, seed
        return self._timestep(0.0)

    def step(self, action: np.ndarray) -> Timestep:
        self._steps += 1
        return self._timestep(1.0)

    def close(self) -> None:
        pass

    def _timestep(self, reward: float) -> Timestep:
        is_last = self._steps == self._length
        obs = {"vector": np.array([self._seed % 1000], np.float32)}
        return Timestep(obs=obs, reward=reward, is_first=self._steps == 0, is_last=is_last, is_terminal=is_last)


class Watching:
    """Records what it saw and in which mode."""

    def __init__(self) -> None:
        self.modes: set[Mode] = set()
        self.first: list[Tensor] = []

    def initial(self, num_envs: int) -> Carry:
        return {"steps": torch.zeros(num_envs)}

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        self.modes.add(mode)
        self.first.append(obs.obs["vector"][:, 0])
        steps = carry["steps"] + 1
        return {"steps": steps}, torch.zeros(len(obs.reward), dtype=torch.int64), {"steps": steps}


def evaluator(
    lengths: list[int], *, episodes: int, buffer: WorldModelSequenceBuffer | None = None, seed: int = 0
) -> Evaluator:
    remaining = iter(lengths)
    env = SeparateEnvironments(lambda: Fixed(next(remaining)), num_envs=len(lengths), seed=0, in_workers=False)
    acting = Acting(RandomStreams(0, device=CPU), CPU)
    return Evaluator(lambda: env, episodes=episodes, seed=seed, acting=acting, buffer=buffer)


@pytest.mark.parametrize(("lengths", "episodes"), [([4, 4, 4], 3), ([4, 4, 4], 7), ([4], 5), ([4, 4, 4], 4)])
def test_exactly_the_asked_number_of_episodes(lengths: list[int], episodes: int) -> None:
    scores = evaluator(lengths, episodes=episodes).evaluate(Watching())
    assert scores["episodes"] == episodes
    assert scores["return_mean"] == scores["length_mean"] == 4.0
    assert scores["return_std"] == 0.0


def test_short_episodes_are_not_counted_more_often() -> None:
    """Whoever ends early waits: two episodes each, though the short one could play twenty in that time."""
    scores = evaluator([1, 20], episodes=4).evaluate(Watching())
    assert scores["return_mean"] == (1 + 1 + 20 + 20) / 4
    first_four_to_end = (1 + 1 + 1 + 1) / 4
    assert scores["return_mean"] != first_four_to_end
    assert (scores["return_min"], scores["return_max"]) == (1.0, 20.0)


def test_the_remainder_goes_to_the_first_environments() -> None:
    scores = evaluator([2, 10, 30], episodes=4).evaluate(Watching())
    assert scores["return_mean"] == (2 + 2 + 10 + 30) / 4


def test_the_policy_acts_in_evaluation_mode_and_remembers() -> None:
    policy = Watching()
    evaluator([3], episodes=1).evaluate(policy)
    assert policy.modes == {"eval"}
    assert len(policy.first) == 4


def starts(policy: Watching) -> list[float]:
    return policy.first[0].tolist()


def test_each_evaluation_has_seeds_of_its_own_and_a_restored_one_repeats_them() -> None:
    one = evaluator([2, 2], episodes=2)
    first, second, third = Watching(), Watching(), Watching()
    one.evaluate(first)
    state = one.get_state()
    one.evaluate(second)
    assert starts(first) != starts(second)
    other = evaluator([2, 2], episodes=2)
    other.set_state(state)
    other.evaluate(third)
    assert starts(third) == starts(second)
    reseeded = Watching()
    evaluator([2, 2], episodes=2, seed=1).evaluate(reseeded)
    assert starts(reseeded) != starts(first)


def test_rows_go_to_the_evaluation_buffer_with_what_the_policy_stores() -> None:
    buffer = WorldModelSequenceBuffer(capacity=100, num_streams=2, rng=torch.Generator())
    evaluator([3, 3], episodes=2, buffer=buffer).evaluate(Watching())
    assert len(buffer) == 2 * 4
    batch = buffer.sample(2, 4, sampler="fresh_first")
    assert batch.is_first.tolist() == [[True, False, False, False]] * 2
    assert batch.is_last.tolist() == [[False, False, False, True]] * 2
    assert batch.reward.sum(1).tolist() == [3.0, 3.0]
    assert batch.stored["steps"].tolist() == [[1.0, 2.0, 3.0, 4.0]] * 2


@pytest.mark.parametrize(
    ("given", "named"),
    [({"every_steps": 0}, "every_steps"), ({"episodes": 0}, "episodes"), ({"envs": 0}, "envs")],
)
def test_numbers_below_one_are_refused(given: dict[str, int], named: str) -> None:
    with pytest.raises(ReverieError, match=rf"evaluation\.{named}"):
        EvaluationConfig(**given)
    assert EvaluationConfig(every_steps=None).every_steps is None
