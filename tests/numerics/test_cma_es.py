"""CMA-ES finds the best of a function, and one that was saved and restored at any time is the same one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from reverie.components.controllers.cma_es import CmaEs
from reverie.orchestration.state_tree import flattened, unflattened
from reverie.types import ReverieError

GENERATIONS = 30


def made(population: int = 8, parameters: int = 6, *, seed: int = 0) -> CmaEs:
    rng = torch.Generator().manual_seed(seed)
    return CmaEs(parameter_count=parameters, population=population, sigma=0.5, rng=rng)


def worth(solutions: np.ndarray) -> np.ndarray:
    """Best at 1, 2, 3, ..., and crooked, so that the covariance matters."""
    away = solutions - np.arange(1, solutions.shape[1] + 1)
    return -(away.cumsum(axis=1) ** 2).sum(axis=1)


def evolved(one: CmaEs, generations: int) -> list[bytes]:
    found = []
    for _ in range(generations):
        found.append(one.solutions.tobytes())
        one.tell(worth(one.solutions))
    return found


def through_a_file(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint does it: anything but arrays and JSON is refused."""
    text, arrays = flattened(state)
    return unflattened(text, {name: value.clone() for name, value in arrays.items()})


def test_it_finds_the_best() -> None:
    one = made(population=16)
    one.ask()
    evolved(one, 150)
    assert one.mean == pytest.approx(np.arange(1, 7), abs=1e-3)
    assert one.step_size < 0.01


@pytest.mark.parametrize("population", [4, 9, 32])
def test_restored_in_any_generation_it_goes_on_bit_equally(population: int) -> None:
    """The stream of random numbers is saved by its owner, as in a run."""
    one = made(population)
    one.ask()
    rngs, states = [], []
    solutions: list[bytes] = []
    for _ in range(GENERATIONS):
        states.append(through_a_file(one.get_state()))
        rngs.append(one._rng.get_state())
        solutions += evolved(one, 1)
    for generation in range(0, GENERATIONS, 3):
        other = made(population, seed=1)
        other.set_state(states[generation])
        other._rng.set_state(rngs[generation])
        assert evolved(other, GENERATIONS - generation) == solutions[generation:]
        assert other.mean.tobytes() == one.mean.tobytes()
        assert other.step_size == one.step_size


@pytest.mark.parametrize("part", ["itself", "sm", "adapt_sigma"])
def test_what_is_not_restored_shows(part: str) -> None:
    one, other = made(), made()
    one.ask()
    evolved(one, 5)
    state, rng = one.get_state(), one._rng.get_state()
    kept = {name: value for name, value in state["parts"].items() if name != part}
    kept.setdefault("itself", {"countiter": 5})
    other.set_state({**state, "parts": kept})
    other._rng.set_state(rng)
    assert evolved(one, 5) != evolved(other, 5)


def test_restoring_an_unbegun_one_forgets_what_was_drawn() -> None:
    one, other = made(), made()
    one.ask()
    one.set_state(other.get_state())
    assert one.get_state() == {}
    assert len(one.solutions) == 0


def test_the_global_generators_are_left_alone() -> None:
    np.random.seed(3)
    expected = np.random.RandomState(3).rand()
    before = torch.get_rng_state()
    one = made()
    one.ask()
    evolved(one, 3)
    assert np.random.rand() == expected
    assert torch.equal(torch.get_rng_state(), before)


def test_a_population_that_is_too_small_is_refused() -> None:
    with pytest.raises(ReverieError, match="population of CMA-ES"):
        made(3)
