"""A policy asked on fixed tensors or not, with the weights of now or of one update ago, makes the same step."""

from __future__ import annotations

import pytest
import torch
from torch import Generator, Tensor, nn

from reverie.runtime.acting import Acted, Acting
from reverie.runtime.capture import not_capturable
from reverie.runtime.rng import RandomStreams
from reverie.types import Carry, Mode, Observation, ReverieError

CPU = torch.device("cpu")
NUM_ENVS = 3


class Summing:
    """Adds up what it sees, weighs it, and acts by that and by chance."""

    def __init__(self, net: nn.Linear, rng: Generator) -> None:
        self.net, self.rng = net, rng

    def initial(self, num_envs: int) -> Carry:
        return {"sum": torch.zeros(num_envs, 2)}

    @torch.no_grad()
    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        total = torch.where(obs.is_first.unsqueeze(1), 0.0, carry["sum"]) + obs.obs["vector"]
        noise = torch.rand(len(total), generator=self.rng) if mode == "train" else torch.zeros(len(total))
        action = (self.net(total)[:, 0] + noise > 0.5).long()
        return {"sum": total}, action, {"sum": total.to(torch.bfloat16), "noise": noise}


def seen(step: int) -> Observation:
    is_first = torch.tensor([step == 0, step == 2, False])
    return Observation(
        obs={"vector": torch.randn(NUM_ENVS, 2, generator=Generator().manual_seed(step)), "count": torch.arange(3)},
        reward=torch.full((NUM_ENVS,), float(step)),
        is_first=is_first,
        is_last=is_first.roll(1),
        is_terminal=~is_first,
    )


def made(*, captures: bool = False, lags: bool = False) -> tuple[Acting, Summing]:
    rng = RandomStreams(0, device=CPU)
    net = nn.Linear(2, 1)
    nn.init.constant_(net.weight, 1.0)
    nn.init.zeros_(net.bias)
    acting = Acting(rng, CPU, lags=lags, captures=captures)
    acting.follow(lambda: {"net": net})
    return acting, Summing(net, rng.stream("act/train"))


def values(acted: Acted) -> list[Tensor]:
    """A copy of all that a step gives, in a fixed order."""
    row = acted.row
    flags = (row.reward, row.is_first, row.is_last, row.is_terminal, row.action)
    parts = [*acted.carry.values(), acted.action, *row.obs.values(), *flags, *row.stored.values()]
    return [value.clone() for value in parts]


def is_same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(one, other, strict=True))


def walked(*, captures: bool, mode: Mode = "train") -> list[list[Tensor]]:
    acting, policy = made(captures=captures)
    carry, found = policy.initial(NUM_ENVS), []
    for step in range(5):
        acted = acting.step(policy, carry, seen(step), mode=mode)
        carry = acted.carry
        if step == 3:  # as after a resume: the same values, elsewhere
            carry = {key: value.clone() for key, value in carry.items()}
        found.append(values(acted))
    return found


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_step_on_fixed_tensors_is_the_step(mode: Mode) -> None:
    plain, fixed = walked(captures=False, mode=mode), walked(captures=True, mode=mode)
    assert all(is_same(one, other) for one, other in zip(plain, fixed, strict=True))
    assert not is_same(plain[0], plain[1])


@pytest.mark.parametrize("on_host", [False, True])
def test_rows_stay_what_they_are(on_host: bool) -> None:
    acting, policy = made(captures=True)
    if on_host:
        acting.keep_rows_on_host()
    first = acting.step(policy, policy.initial(NUM_ENVS), seen(0), mode="train")
    before = values(first)[2:]
    action = first.action.clone()
    acting.step(policy, first.carry, seen(1), mode="train")
    assert is_same(values(first)[2:], before)
    assert torch.equal(first.row.action, action)


def test_the_number_of_environments_may_change() -> None:
    acting, policy = made(captures=True)
    acting.step(policy, policy.initial(NUM_ENVS), seen(0), mode="train")
    one = seen(0)
    fewer = Observation(
        obs={key: value[:1] for key, value in one.obs.items()},
        reward=one.reward[:1],
        is_first=one.is_first[:1],
        is_last=one.is_last[:1],
        is_terminal=one.is_terminal[:1],
    )
    assert acting.step(policy, policy.initial(1), fewer, mode="train").action.shape == (1,)


def lagged_sums(acting: Acting, policy: Summing) -> list[float]:
    """What each step's weight was, while the network's grows by one with every update."""
    found, one = [], seen(0)
    one.obs["vector"].fill_(1.0)
    carry = policy.initial(NUM_ENVS)
    for _ in range(4):
        acting.step(policy, carry, one, mode="train")
        found.append(float(acting.get_state()["net.weight"][0, 0]))
        acting.before_update()
        with torch.no_grad():
            policy.net.weight += 1
    return found


def test_lagged_weights_are_those_from_before_the_last_update() -> None:
    acting, policy = made(lags=True)
    assert lagged_sums(acting, policy) == [1.0, 1.0, 2.0, 3.0]


@pytest.mark.parametrize("captures", [False, True])
def test_lagged_weights_act_while_collecting_and_current_ones_in_evaluations(captures: bool) -> None:
    acting, policy = made(lags=True, captures=captures)
    one = seen(0)
    one.obs["vector"].fill_(1.0)
    acting.step(policy, policy.initial(NUM_ENVS), one, mode="train")
    acting.before_update()
    with torch.no_grad():
        policy.net.weight.fill_(-10.0)
        policy.net.bias.fill_(-10.0)
    assert acting.step(policy, policy.initial(NUM_ENVS), one, mode="train").action.tolist() == [1, 1, 1]
    assert acting.step(policy, policy.initial(NUM_ENVS), one, mode="eval").action.tolist() == [0, 0, 0]
    acting.before_update()
    assert acting.step(policy, policy.initial(NUM_ENVS), one, mode="train").action.tolist() == [0, 0, 0]


def test_lagged_weights_come_back() -> None:
    acting, policy = made(lags=True)
    lagged_sums(acting, policy)
    other, new = made(lags=True)
    with torch.no_grad():
        new.net.weight.copy_(policy.net.weight)
    other.set_state(acting.get_state())
    assert set(other.get_state()) == {"net.weight", "net.bias"}  # also before it has acted
    other.step(new, new.initial(NUM_ENVS), seen(0), mode="train")
    assert float(other.get_state()["net.weight"][0, 0]) == 4.0
    assert new.net.weight[0, 0].item() == 5.0


def test_lagged_weights_that_came_back_are_refreshed_before_they_act() -> None:
    acting, policy = made(lags=True)
    lagged_sums(acting, policy)
    other, new = made(lags=True)
    with torch.no_grad():
        new.net.weight.fill_(6.0)
    other.set_state(acting.get_state())
    other.before_update()
    with torch.no_grad():
        new.net.weight.fill_(9.0)
    other.step(new, new.initial(NUM_ENVS), seen(0), mode="train")
    assert float(other.get_state()["net.weight"][0, 0]) == 6.0


def test_a_copy_draws_from_the_same_stream() -> None:
    plain, policy = made()
    lagging, lagged_policy = made(lags=True)
    for step in range(3):
        one = plain.step(policy, policy.initial(NUM_ENVS), seen(step), mode="train")
        other = lagging.step(lagged_policy, lagged_policy.initial(NUM_ENVS), seen(step), mode="train")
        assert torch.equal(one.row.stored["noise"], other.row.stored["noise"])
    assert torch.equal(policy.rng.get_state(), lagged_policy.rng.get_state())


def test_policies_share_the_networks_of_their_copies() -> None:
    acting, policy = made(lags=True)
    second = Summing(policy.net, policy.rng)
    acting.step(policy, policy.initial(NUM_ENVS), seen(0), mode="train")
    acting.before_update()
    with torch.no_grad():
        policy.net.weight.fill_(7.0)
    acting.step(second, second.initial(NUM_ENVS), seen(0), mode="train")
    assert float(acting.get_state()["net.weight"][0, 0]) == 1.0


class Changing(Summing):
    can_lag = False


def test_a_policy_that_others_change_acts_as_it_is_now() -> None:
    acting, policy = made(lags=True)
    changing, one = Changing(policy.net, policy.rng), seen(0)
    one.obs["vector"].fill_(1.0)
    assert acting.step(changing, changing.initial(NUM_ENVS), one, mode="train").action.tolist() == [1, 1, 1]
    with torch.no_grad():
        policy.net.weight.fill_(-10.0)
    assert acting.step(changing, changing.initial(NUM_ENVS), one, mode="train").action.tolist() == [0, 0, 0]


class Uncopiable(Summing):
    def __init__(self, net: nn.Linear, rng: Generator) -> None:
        super().__init__(net, rng)
        self.rows = (row for row in ())  # holds something of this process alone


def test_a_policy_that_cannot_be_copied_is_named() -> None:
    acting, policy = made(lags=True)
    with pytest.raises(ReverieError, match=r"Uncopiable cannot be copied .* set runtime.acting_weights=current"):
        acting.step(Uncopiable(policy.net, policy.rng), policy.initial(NUM_ENVS), seen(0), mode="train")


class Asking(Summing):
    @not_capturable
    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        return super().act(carry, obs, mode=mode)


def test_a_policy_that_cannot_be_captured_acts_eagerly() -> None:
    acting, policy = made(captures=True)
    asking = Asking(policy.net, policy.rng)
    carry = policy.initial(NUM_ENVS)
    assert acting.step(asking, carry, seen(0), mode="train").carry is not carry
    fixed = acting.step(policy, carry, seen(0), mode="train").carry
    assert acting.step(policy, fixed, seen(1), mode="train").carry is fixed
    eager = acting.step(asking, carry, seen(0), mode="train").carry
    assert acting.step(asking, eager, seen(1), mode="train").carry is not eager
