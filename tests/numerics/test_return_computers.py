"""Return computers against their definitions in float64 and against the published DreamerV3 code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reverie.components.return_computers.base import ReturnComputer
from reverie.components.return_computers.discounted import Discounted
from reverie.components.return_computers.n_step import NStep
from reverie.components.return_computers.td_lambda import TdLambda, replay_lambda_return
from reverie.types import ReverieError

torch.set_num_threads(1)

FIXTURE = Path(__file__).parent / "fixtures" / "dreamerv3" / "returns.npz"


def random_trajectory(seed: int, num: int, horizon: int) -> tuple[Tensor, Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    shape = (num, horizon + 1)
    reward = torch.randn(shape, dtype=torch.float64, generator=rng)
    discount = torch.rand(shape, dtype=torch.float64, generator=rng)
    value = 5 * torch.randn(shape, dtype=torch.float64, generator=rng)
    return reward, discount, value


def rows_of(trajectory: tuple[Tensor, Tensor, Tensor]) -> list[tuple[list[float], list[float], list[float]]]:
    reward, discount, value = (part.tolist() for part in trajectory)
    return list(zip(reward, discount, value, strict=True))


def n_step_by_definition(reward: list[float], discount: list[float], value: list[float], steps: int) -> list[float]:
    horizon, returns = len(reward) - 1, []
    for start in range(horizon):
        stop = min(start + steps, horizon)
        total, weight = 0.0, 1.0
        for arrival in range(start + 1, stop + 1):
            total += weight * reward[arrival]
            weight *= discount[arrival]
        returns.append(total + weight * value[stop])
    return returns


def lambda_by_definition(reward: list[float], discount: list[float], value: list[float], lambda_: float) -> list[float]:
    """As the mixture of n-step returns, so that the test does not repeat the recursion."""
    horizon = len(reward) - 1
    n_steps = [n_step_by_definition(reward, discount, value, steps) for steps in range(1, horizon + 1)]
    returns = []
    for start in range(horizon):
        longest = horizon - start
        mixed = sum((1 - lambda_) * lambda_ ** (steps - 1) * n_steps[steps - 1][start] for steps in range(1, longest))
        returns.append(mixed + lambda_ ** (longest - 1) * n_steps[longest - 1][start])
    return returns


def replay_by_definition(
    reward: list[float], live: list[float], continues: list[float], boot: list[float]
) -> list[float]:
    following, returns = boot[-1], []
    for arrival in range(len(reward) - 1, 0, -1):
        mixed = (1 - continues[arrival]) * boot[arrival] + continues[arrival] * following
        following = reward[arrival] + live[arrival] * mixed
        returns.append(following)
    return returns[::-1]


def assert_close(actual: Tensor, expected: list[list[float]]) -> None:
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


sizes = {"seed": st.integers(0, 2**31), "num": st.integers(1, 3), "horizon": st.integers(1, 12)}


@settings(max_examples=60, deadline=None)
@given(**sizes, steps=st.integers(1, 15))
def test_n_step_is_its_definition(seed: int, num: int, horizon: int, steps: int) -> None:
    trajectory = random_trajectory(seed, num, horizon)
    expected = [n_step_by_definition(*row, steps) for row in rows_of(trajectory)]
    assert_close(NStep(steps=steps)(*trajectory), expected)


@settings(max_examples=60, deadline=None)
@given(**sizes, lambda_=st.sampled_from([0.0, 0.3, 0.95, 1.0]))
def test_td_lambda_is_the_mixture_of_n_step_returns(seed: int, num: int, horizon: int, lambda_: float) -> None:
    trajectory = random_trajectory(seed, num, horizon)
    expected = [lambda_by_definition(*row, lambda_) for row in rows_of(trajectory)]
    assert_close(TdLambda(lambda_=lambda_)(*trajectory), expected)


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_discounted_is_the_sum_up_to_the_horizon(seed: int, num: int, horizon: int) -> None:
    trajectory = random_trajectory(seed, num, horizon)
    expected = [n_step_by_definition(*row, horizon) for row in rows_of(trajectory)]
    assert_close(Discounted()(*trajectory), expected)


@settings(max_examples=60, deadline=None)
@given(**sizes)
def test_replay_return_is_its_definition(seed: int, num: int, horizon: int) -> None:
    reward, live, boot = random_trajectory(seed, num, horizon)
    continues = torch.rand(reward.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed + 1))
    columns = (part.tolist() for part in (reward, live, continues, boot))
    expected = [replay_by_definition(*row) for row in zip(*columns, strict=True)]
    assert_close(replay_lambda_return(reward, live, continues, boot), expected)


@pytest.mark.parametrize("computer", [TdLambda(), NStep(steps=3), Discounted()])
def test_the_start_pays_nothing_and_every_later_reward_and_value_is_reached(computer: ReturnComputer) -> None:
    reward, discount, value = (part.requires_grad_() for part in random_trajectory(0, 2, 5))
    computer(reward, discount, value).sum().backward()
    assert reward.grad is not None
    assert discount.grad is not None
    assert value.grad is not None
    assert torch.equal(reward.grad[:, 0], torch.zeros(2, dtype=torch.float64))
    assert torch.equal(discount.grad[:, 0], torch.zeros(2, dtype=torch.float64))
    assert bool((reward.grad[:, 1:] != 0).all())
    assert bool((value.grad[:, -1] != 0).all())


@pytest.mark.parametrize("computer", [TdLambda(), NStep(steps=3), Discounted()])
def test_a_terminal_arrival_hides_what_follows(computer: ReturnComputer) -> None:
    reward, discount, value = random_trajectory(1, 2, 6)
    discount[:, 3] = 0.0
    before = computer(reward, discount, value)
    reward[:, 4:] += 100.0
    value[:, 3:] += 100.0
    after = computer(reward, discount, value)
    torch.testing.assert_close(after[:, :3], before[:, :3])
    assert bool((after[:, 3:] > before[:, 3:]).all())


def test_imagined_returns_equal_the_published_code() -> None:
    with np.load(FIXTURE) as arrays:
        reward, discount = torch.from_numpy(arrays["imag/rew"]), torch.from_numpy(arrays["imag/con"])
        value = torch.from_numpy(arrays["imag/value_pred"])
        for kind in ("imag_discrete", "imag_continuous"):
            expected = torch.from_numpy(arrays[f"{kind}/ret"])
            torch.testing.assert_close(TdLambda(lambda_=0.95)(reward, discount, value), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("lambda_", "expected"), [(0.95, "ret"), (0.0, "ret_lam0"), (1.0, "ret_lam1")])
def test_lambda_returns_equal_the_published_code(lambda_: float, expected: str) -> None:
    with np.load(FIXTURE) as arrays:
        assert float(arrays["lambda_return/lam"]) == pytest.approx(0.95)
        returns = replay_return_of_fixture(arrays, "lambda_return", lambda_)
        torch.testing.assert_close(returns, torch.from_numpy(arrays[f"lambda_return/{expected}"]), rtol=1e-5, atol=1e-5)


def test_replay_returns_equal_the_published_code() -> None:
    with np.load(FIXTURE) as arrays:
        returns = replay_return_of_fixture(arrays, "repl", 0.95)
        torch.testing.assert_close(returns, torch.from_numpy(arrays["repl/ret"]), rtol=1e-5, atol=1e-5)


def replay_return_of_fixture(arrays: np.lib.npyio.NpzFile, group: str, lambda_: float) -> Tensor:
    is_last, is_terminal = (torch.from_numpy(arrays[f"{group}/{name}"]) for name in ("last", "term"))
    assert bool(is_last.any()), "the fixture must cross an episode border"
    live = (~is_terminal).float() * (1 - 1 / 333)
    continues = (~is_last).float() * lambda_
    reward, boot = (torch.from_numpy(arrays[f"{group}/{name}"]) for name in ("rew", "boot"))
    return replay_lambda_return(reward, live, continues, boot)


@pytest.mark.parametrize("lambda_", [-0.1, 1.1, float("nan")])
def test_a_lambda_outside_its_range_is_refused(lambda_: float) -> None:
    with pytest.raises(ReverieError, match="from 0 to 1"):
        TdLambda(lambda_=lambda_)


def test_less_than_one_step_is_refused() -> None:
    with pytest.raises(ReverieError, match="at least 1"):
        NStep(steps=0)
