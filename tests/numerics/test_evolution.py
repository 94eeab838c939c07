"""Who plays which episodes in an evolution, what is kept of it, and that it goes on from a saved state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from reverie.components.controllers.evolution import Evolution
from reverie.components.controllers.rounds import Rounds, population_layout
from reverie.types import Episode, ReverieError


def made(**numbers: Any) -> Evolution:
    usual = {"population": 8, "episodes": 4, "mean_every": 2, "mean_episodes": 6}
    rng = torch.Generator().manual_seed(0)
    one = Evolution(parameter_count=3, rng=rng, **usual | numbers)
    one.enter("task")
    return one


def rounds_of(evolution: Evolution, num_envs: int) -> Rounds:
    return Rounds(evolution, num_envs=num_envs, rng=torch.Generator().manual_seed(1))


def score_of(weights: np.ndarray, seed: int, env: int, number: int) -> float:
    """Of one episode: something that tells all of these apart."""
    return float(weights.sum() + seed % 1000 + 10 * env + 0.1 * number)


def played(rounds: Rounds, num_envs: int, *, unequal: bool = False) -> dict[tuple[bytes, int], list[tuple[int, int]]]:
    """Play everybody. By the weights of a contestant and environment: (seed, number) of its episodes."""
    found: dict[tuple[bytes, int], list[tuple[int, int]]] = {}
    while not rounds.are_over:
        weights, seed = rounds.begin()
        numbers = [0] * num_envs
        step = 0
        while rounds.has_begun:
            # Some environments are quicker: what they play beyond their share does not count.
            ending = [env for env in range(num_envs) if not unequal or step % (env + 1) == 0]
            for env in ending:
                found.setdefault((weights[env].tobytes(), env), []).append((seed, numbers[env]))
            scores = {env: score_of(weights[env], seed, env, numbers[env]) for env in ending}
            rounds.add({env: Episode(score=score, length=1) for env, score in scores.items()})
            for env in ending:
                numbers[env] += 1
            step += 1
    return found


@pytest.mark.parametrize("num_envs", [1, 2, 4, 8, 16])
def test_the_second_half_plays_the_episodes_of_the_first(num_envs: int) -> None:
    one = made()
    rounds = rounds_of(one, num_envs)
    found = played(rounds, num_envs)
    by_member = [
        sorted(
            (env, *episode)
            for (weights, env), several in found.items()
            if weights == member.tobytes()
            for episode in several
        )
        for member in one.contestants()
    ]
    assert all(len(episodes) == 4 for episodes in by_member)
    assert by_member[:4] == by_member[4:]
    assert len({episode for episodes in by_member[:4] for episode in episodes}) == 16, "the first half shares none"


def test_without_antithetic_seeds_nobody_shares_an_episode() -> None:
    one = made(has_antithetic_seeds=False)
    rounds = rounds_of(one, 2)
    found = played(rounds, 2)
    episodes = [(env, *episode) for (_, env), several in found.items() for episode in several]
    assert len(set(episodes)) == len(episodes) == 8 * 4


def test_a_return_is_the_mean_of_the_episodes_that_count() -> None:
    one = made()
    rounds = rounds_of(one, 2)
    seeds = {}
    members = [weights.sum() for weights in one.contestants()]
    for (weights, env), episodes in played(rounds, 2, unequal=True).items():
        seeds[weights] = (episodes[0][0], env)
    for index, weights in enumerate(one.contestants()):
        seed, env = seeds[weights.tobytes()]
        expected = members[index] + seed % 1000 + 10 * env + 0.15  # episodes 0 to 3
        assert rounds.returns()[index] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("numbers", "num_envs"), [({}, 3), ({}, 5), ({}, 12), ({"episodes": 3}, 8), ({"has_antithetic_seeds": False}, 5)]
)
def test_environments_that_cannot_be_shared_are_refused(numbers: dict[str, Any], num_envs: int) -> None:
    with pytest.raises(ReverieError, match=r"environment\.num_envs must divide"):
        population_layout(made(**numbers), num_envs)


def test_a_disturbed_round_is_played_again() -> None:
    one = made()
    rounds, others = rounds_of(one, 2), rounds_of(one, 2)
    rounds.begin()
    rounds.add({0: Episode(score=1e6, length=1)})
    rounds.abort()
    assert played(rounds, 2) == played(others, 2)
    assert rounds.returns().tolist() == others.returns().tolist()


def test_the_best_mean_is_kept_and_acts() -> None:
    one = made(mean_every=1)
    assert one.acting().tolist() == [0.0] * 3
    kept = []
    for found in (5.0, 7.0, 6.0):
        one.judge(one.contestants().sum(axis=1))
        assert one.stage == "mean"
        assert len(one.contestants()) == 1
        assert one.episodes_of_each() == 6
        kept.append(one.contestants()[0].tolist())
        metrics = one.judge(np.array([found]))
        assert metrics["mean_fitness"] == found
    assert metrics["best_mean_fitness"] == 7.0
    assert one.acting().tolist() == kept[1]


def test_heavy_weights_cost_what_the_decay_says() -> None:
    """Two evolutions whose returns differ by just the penalty go the same way."""
    one, other = made(weight_decay=0.0), made(weight_decay=0.5)
    for _ in range(4):
        returns = one.contestants().sum(axis=1)
        one.judge(returns if one.stage == "mean" else returns - 0.5 * np.square(one.contestants()).mean(axis=1))
        other.judge(returns)
        assert one.contestants().tolist() == other.contestants().tolist()


def test_another_arena_begins_anew_but_keeps_what_was_learned() -> None:
    one = made(mean_every=1)
    one.judge(one.contestants().sum(axis=1))
    one.judge(np.array([100.0]))
    solutions = one.contestants().copy()
    assert one.enter("dream")
    assert not one.enter("dream")
    assert one.contestants().tolist() == solutions.tolist()
    one.judge(one.contestants().sum(axis=1))
    assert one.judge(np.array([1.0]))["best_mean_fitness"] == 1.0


def test_what_was_judged_through_another_model_counts_no_more() -> None:
    one = made(mean_every=1)
    one.know("a model")
    one.enter("task")
    one.judge(one.contestants().sum(axis=1))
    one.judge(np.array([100.0]))
    best, mean = one.acting().tolist(), one._search.mean.tolist()
    one.judge(one.contestants().sum(axis=1))
    again = made(mean_every=1)
    again.set_state(one.get_state())
    for model, is_other in (("a model", False), ("another model", True)):
        again.know(model)
        assert again.enter("task") == is_other
        assert again.acting().tolist() == (again._search.mean.tolist() if is_other else best)
    assert again._search.mean.tolist() == one._search.mean.tolist() != mean
    assert again.stage == "generation"


def test_a_saved_evolution_goes_on_as_the_same() -> None:
    one = made()
    rounds = rounds_of(one, 4)
    played(rounds, 4)
    one.judge(rounds.returns())
    rounds.restart()
    rounds.begin()
    rounds.add({2: Episode(score=3.0, length=1)})
    other = made()
    again = rounds_of(other, 4)
    other.set_state(one.get_state())
    other._search._rng.set_state(one._search._rng.get_state())
    again.set_state(rounds.get_state())
    again._rng.set_state(rounds._rng.get_state())
    for _ in range(3):
        for evolution, theirs in ((one, rounds), (other, again)):
            while theirs.has_begun:
                theirs.add(dict.fromkeys(range(4), Episode(score=1.0, length=1)))
            played(theirs, 4)
            evolution.judge(theirs.returns())
            theirs.restart()
        assert one.contestants().tolist() == other.contestants().tolist()
    assert one.history().tolist() == other.history().tolist()
    assert one.generation == other.generation == 3


@pytest.mark.parametrize(
    "numbers", [{"population": 7}, {"episodes": 0}, {"mean_every": 0}, {"mean_episodes": 0}, {"weight_decay": -1.0}]
)
def test_impossible_numbers_are_refused(numbers: dict[str, Any]) -> None:
    with pytest.raises(ReverieError, match=r"controller\.population"):
        made(**numbers)
