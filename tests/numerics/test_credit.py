"""Credit, objectives and the critic's slow copy against sums and products that are written out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.components.controllers.actor_objective import (
    DynamicsGradient,
    MixedGradient,
    ObjectiveBySpace,
    Reinforce,
)
from reverie.components.controllers.credit import ArrivalCredit, Credit, StateCredit
from reverie.components.controllers.critic import Critic
from reverie.components.controllers.random_actor import RandomActor
from reverie.components.controllers.return_scale import UnitScale
from reverie.components.networks.distributions import Normal
from reverie.components.networks.heads import NormalHead
from reverie.components.return_computers.td_lambda import TdLambda
from reverie.types import ReverieError, Space

NUM, HORIZON, LAMBDA, GAMMA = 3, 5, 0.7, 0.9
MOVED = torch.tensor(False)
CONTINUOUS = Space(shape=(2,), dtype="float32")
DISCRETE = Space(shape=(), dtype="int64", classes=3)


class Dream:
    """Random numbers at H + 1 states."""

    def __init__(self) -> None:
        rng = torch.Generator().manual_seed(0)
        shape = (NUM, HORIZON + 1)
        self.reward, self.value = (torch.randn(shape, generator=rng, dtype=torch.float64) for _ in range(2))
        self.live = torch.rand(shape, generator=rng, dtype=torch.float64)
        self.start_live = torch.tensor([GAMMA, 0.0, GAMMA], dtype=torch.float64)

    def credit(self, rule: ArrivalCredit | StateCredit) -> Credit:
        computer = TdLambda(lambda_=LAMBDA)
        return rule(self.reward, self.live, self.value, start_live=self.start_live, computer=computer)

    def own_returns(self, live: Tensor) -> Tensor:
        """V1 and V2: R_t = r_t + c_t ((1 - lambda) v_{t+1} + lambda R_{t+1}), t = 0 .. H-1, R_H = v_H."""
        found, last = [], self.value[:, -1]
        for t in reversed(range(HORIZON)):
            last = self.reward[:, t] + live[:, t] * ((1 - LAMBDA) * self.value[:, t + 1] + LAMBDA * last)
            found.append(last)
        return torch.stack(found[::-1], 1)


def products(live: Tensor, first: int, count: int) -> Tensor:
    """1, c_first, c_first * c_{first+1}, ..."""
    found = [torch.ones(NUM, dtype=torch.float64)]
    for t in range(first, first + count - 1):
        found.append(found[-1] * live[:, t])
    return torch.stack(found, 1)


def test_v2_credits_an_action_with_the_return_of_the_state_it_leads_to() -> None:
    dream = Dream()
    live = dream.live.clone()
    live[:, 0] = dream.start_live  # replay knows whether the start was the end
    returns = dream.own_returns(live)
    credit = dream.credit(StateCredit(has_true_start=True))
    torch.testing.assert_close(credit.returns, returns[:, 1:])
    torch.testing.assert_close(credit.baseline, dream.value[:, : HORIZON - 1])
    torch.testing.assert_close(credit.weight, products(live, 0, HORIZON - 1))
    torch.testing.assert_close(credit.target[:, credit.judged], returns)
    torch.testing.assert_close(credit.value_weight, products(live, 0, HORIZON))
    assert credit.weight[1, 1:].eq(0).all(), "after a terminal start nothing counts"
    predicted = dream.credit(StateCredit())
    torch.testing.assert_close(predicted.weight, products(dream.live, 0, HORIZON - 1))


def test_v1_leaves_the_start_out() -> None:
    dream = Dream()
    returns = dream.own_returns(dream.live)
    credit = dream.credit(StateCredit(judges_start=False))
    torch.testing.assert_close(credit.returns, returns[:, 1:])
    torch.testing.assert_close(credit.weight, products(dream.live, 1, HORIZON - 1))
    torch.testing.assert_close(credit.target[:, credit.judged], returns[:, 1:])
    torch.testing.assert_close(credit.value_weight, products(dream.live, 1, HORIZON - 1))


def test_the_shortest_dream_of_v1_has_one_action() -> None:
    dream = Dream()
    for name in ("reward", "live", "value"):
        setattr(dream, name, getattr(dream, name)[:, :3])
    credit = dream.credit(StateCredit(judges_start=False))
    assert credit.returns.shape == credit.weight.shape == credit.value_weight.shape == (NUM, 1)
    torch.testing.assert_close(credit.returns[:, 0], dream.reward[:, 1] + dream.live[:, 1] * dream.value[:, 2])


def test_v3_weighs_a_step_by_its_own_state_too_and_2023_asks_replay_about_the_start() -> None:
    dream = Dream()
    predicted, true = dream.credit(ArrivalCredit()), dream.credit(ArrivalCredit(has_true_start=True))
    torch.testing.assert_close(predicted.weight, dream.live.cumprod(1)[:, :-1])
    live = dream.live.clone()
    live[:, 0] = torch.tensor([1.0, 0.0, 1.0])
    torch.testing.assert_close(true.weight, live.cumprod(1)[:, :-1])
    torch.testing.assert_close(true.returns, predicted.returns)


@pytest.mark.parametrize("rule", [ArrivalCredit(), StateCredit(), StateCredit(judges_start=False)])
def test_only_returns_and_baseline_have_gradients(rule: ArrivalCredit | StateCredit) -> None:
    dream = Dream()
    for name in ("reward", "live", "value"):
        getattr(dream, name).requires_grad_()
    credit = dream.credit(rule)
    assert credit.returns.requires_grad
    assert credit.baseline.requires_grad
    assert not any(one.requires_grad for one in (credit.weight, credit.target, credit.value_weight))


# Objectives


def small_credit() -> tuple[Credit, Tensor, Tensor]:
    """Returns and baselines that are functions of two leaves."""
    gain, base = torch.tensor([[2.0, 3.0]], requires_grad=True), torch.tensor([[0.5, 1.0]], requires_grad=True)
    rest: dict[str, Any] = {"weight": base, "target": base, "judged": slice(0, 1), "value_weight": base}
    return Credit(returns=gain * 1.0, baseline=base * 1.0, **rest), gain, base


def gradients(objective: Reinforce | DynamicsGradient | MixedGradient) -> tuple[Tensor, ...]:
    """Of the summed gain, by the policy's mean, by the returns and by the baselines."""
    credit, gain, base = small_credit()
    mean = torch.zeros(1, 2, 2, requires_grad=True)
    action = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]], requires_grad=True)
    total = objective(Normal(mean, torch.ones(1, 2, 2)), action, credit, torch.tensor(2.0)).sum()
    found = torch.autograd.grad(total, [mean, gain, base, action], materialize_grads=True)
    assert not found[3].any(), "an action in log pi(a) is a given thing"
    return found[:3]


def test_reinforce_weighs_the_score_by_the_scaled_advantage() -> None:
    mean, gain, base = gradients(Reinforce())
    # d log N(a; m, 1) / dm = a - m; advantages (2 - 0.5) / 2 and (3 - 1) / 2.
    torch.testing.assert_close(mean, torch.tensor([[[0.75, 0.0], [0.0, 2.0]]]))
    assert not gain.any()
    assert not base.any()


@pytest.mark.parametrize(("has_baseline", "expected"), [(False, 0.0), (True, -0.5)])
def test_dynamics_gradients_follow_the_returns(has_baseline: bool, expected: float) -> None:
    mean, gain, base = gradients(DynamicsGradient(has_baseline=has_baseline))
    assert not mean.any()
    torch.testing.assert_close(gain, torch.full((1, 2), 0.5))
    torch.testing.assert_close(base, torch.full((1, 2), expected))


def test_the_mixture_is_a_sum_of_both() -> None:
    parts = [gradients(Reinforce()), gradients(DynamicsGradient())]
    for mixed, one, other in zip(gradients(MixedGradient(dynamics_share=0.1)), *parts, strict=True):
        torch.testing.assert_close(mixed, 0.9 * one + 0.1 * other)
    with pytest.raises(ReverieError, match="dynamics_share"):
        MixedGradient(dynamics_share=1.5)


def test_the_objective_follows_the_action_space() -> None:
    given = {"discrete": Reinforce(), "continuous": DynamicsGradient()}
    assert ObjectiveBySpace(space=DISCRETE, **given) is given["discrete"]
    assert ObjectiveBySpace(space=CONTINUOUS, **given) is given["continuous"]


# Critic, scale, random actor


def critic(**settings: Any) -> Critic:
    torch.manual_seed(0)
    return Critic(head=NormalHead(feature_dim=3, layers=1, units=4), **settings)


def test_a_hard_copy_comes_with_the_first_and_every_nth_update() -> None:
    one = critic(slow_rate=1.0, slow_every=3, bootstrap="slow")
    assert one.slow is not None
    was_copied = []
    for _ in range(7):
        with torch.no_grad():
            for parameter in one.online.parameters():
                parameter += 1.0
        one.update_slow(unless=MOVED)
        pairs = zip(one.slow.parameters(), one.online.parameters(), strict=True)
        was_copied.append(all(torch.equal(slow, online) for slow, online in pairs))
    assert was_copied == [True, False, False, True, False, False, True]


def test_the_counter_of_the_copy_is_saved() -> None:
    one, other = critic(slow_rate=1.0, slow_every=3), critic(slow_rate=1.0, slow_every=3)
    one.update_slow(unless=MOVED)
    other.load_state_dict(copy.deepcopy(one.state_dict()))
    assert int(other.slow_updates) == 1
    other.update_slow(unless=~MOVED)
    assert int(other.slow_updates) == 1, "an update that was skipped is none"
    assert "slow_updates" not in critic().state_dict(), "what is not needed is not stored"


def test_whose_values_returns_are_made_of() -> None:
    feature = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    for bootstrap in ("online", "slow"):
        one = critic(slow_rate=0.5, bootstrap=bootstrap)
        with torch.no_grad():
            for parameter in one.online.parameters():
                parameter += 1.0
        assert one.slow is not None
        chosen = one.online if bootstrap == "online" else one.slow
        torch.testing.assert_close(one.worth(feature, one(feature)), chosen(feature).mean())
        followed = feature.clone().requires_grad_()
        assert one.worth(followed).requires_grad, "the gradient goes through the critic"


def test_a_critic_without_a_slow_copy() -> None:
    alone = critic(slow_rate=None)
    assert not any(name.startswith("slow") for name in alone.state_dict())
    alone.update_slow(unless=MOVED)
    with pytest.raises(ReverieError, match="slow_rate"):
        critic(slow_rate=None, bootstrap="slow")


def test_the_unit_scale_leaves_returns_alone() -> None:
    assert UnitScale().update(torch.tensor([5.0, 100.0])) == 1


@pytest.mark.parametrize("space", [DISCRETE, CONTINUOUS])
def test_the_random_actor_draws_from_the_whole_space(space: Space) -> None:
    actor = RandomActor(space=space)
    choice = actor(torch.zeros(2000, 7))
    drawn = choice.sample(torch.Generator().manual_seed(0))
    assert drawn.shape == (2000, *space.shape)
    if space.is_discrete:
        assert sorted(set(drawn.tolist())) == [0, 1, 2]
        assert actor.vector(drawn).shape == (2000, 3)
    else:
        assert drawn.min() < -0.95
        assert drawn.max() > 0.95
    assert torch.equal(choice.sample(None), torch.zeros_like(drawn))
