"""How World Models acts: what the controller reads, how its numbers become actions, and the random ways to act."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from reverie.components.controllers.controller_weights import GivenWeights, OwnWeights, RandomWeights
from reverie.components.controllers.held_policies import BrownianPolicy, HeldPolicy
from reverie.components.controllers.linear_controller import LinearController
from reverie.components.dynamics.mdn_rnn import MdnRnn, Memory
from reverie.components.representation_learners.conv_vae import ConvVae
from reverie.runtime.precision import FULL_PRECISION
from reverie.types import Observation, ReverieError, Space
from reverie.workflows.og_wm_policy import LatentPolicy

STEER = Space(shape=(3,), dtype="float32")
THREE = Space(shape=(), dtype="int64", classes=3)
PICTURE = Space(shape=(64, 64, 3), dtype="uint8")


def seen(count: int, *, is_first: bool, seed: int = 0) -> Observation:
    rng = torch.Generator().manual_seed(seed)
    no = torch.zeros(count, dtype=torch.bool)
    pictures = torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8, generator=rng)
    first = ~no if is_first else no
    return Observation(obs={"image": pictures}, reward=torch.zeros(count), is_first=first, is_last=no, is_terminal=no)


def test_continuous_actions_are_squashed_and_one_sided_ones_have_no_lower_half() -> None:
    controller = LinearController(space=STEER, latent_dim=2, memory_dim=1, one_sided=[2])
    weights = torch.zeros(2, controller.parameter_count).view(2, 3, 4)
    weights[0, :, -1] = torch.tensor([0.5, -0.5, 0.5])
    weights[1, :, 0] = torch.tensor([1.0, -1.0, -1.0])
    latent = torch.tensor([[0.0, 0.0], [2.0, 0.0]])
    memory = Memory(hidden=torch.ones(2, 1), cell=torch.ones(2, 1))
    found = controller.actions(weights.flatten(1), latent, memory)
    half, two = math.tanh(0.5), math.tanh(2.0)
    assert found[0].tolist() == pytest.approx([half, -half, 2 * half - 1])
    assert found[1].tolist() == pytest.approx([two, -two, -1.0])


def test_the_memory_is_read_behind_the_latent_and_the_cell_behind_that() -> None:
    controller = LinearController(space=THREE, latent_dim=1, memory_dim=1, reads_cell=True)
    assert controller.parameter_count == 3 * 4
    latent, memory = torch.zeros(3, 1), Memory(hidden=torch.ones(3, 1), cell=torch.ones(3, 1))
    weights = torch.zeros(3, 3, 4)
    for env, column in enumerate((1, 2, 3)):  # the hidden state, the cell, the constant
        weights[env, env, column] = 1.0
    assert controller.actions(weights.flatten(1), latent, memory).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("space", "options", "words"),
    [
        (Space(shape=(2,), dtype="int64", classes=(2, 3)), {}, "one discrete action or one vector"),
        (STEER, {"one_sided": [3]}, "action 3"),
        (THREE, {"one_sided": [0]}, "action 0"),
    ],
)
def test_other_actions_are_refused(space: Space, options: dict[str, list[int]], words: str) -> None:
    with pytest.raises(ReverieError, match=words):
        LinearController(space=space, latent_dim=1, memory_dim=1, **options)


class Acting:
    def __init__(self, *, acts_on: str = "mean") -> None:
        torch.manual_seed(0)
        self.vae = ConvVae(spaces={"image": PICTURE}, latent=2, depth=1)
        self.rnn = MdnRnn(latent_dim=2, action_dim=3, units=4)
        self.controller = LinearController(space=STEER, latent_dim=2, memory_dim=4)
        self.controller.weights.copy_(torch.randn(self.controller.parameter_count))
        self.rngs = {"train": torch.Generator().manual_seed(1), "eval": torch.Generator().manual_seed(2)}
        self.policy = LatentPolicy(
            self.vae,
            self.rnn,
            self.controller,
            OwnWeights(self.controller),
            rngs=self.rngs,
            acts_on=acts_on,
            precision=FULL_PRECISION,
        )


def test_the_controller_reads_the_memory_before_its_own_action() -> None:
    acting = Acting()
    first, second = seen(2, is_first=True), seen(2, is_first=False, seed=1)
    carry, one, stored = acting.policy.act(acting.policy.initial(2), first, mode="eval")
    with torch.no_grad():
        mean, _ = acting.vae.encoded(first.obs)
        weights = acting.controller.weights.expand(2, -1)
        nothing = acting.rnn.initial(2)
        assert torch.allclose(one, acting.controller.actions(weights, mean, nothing))
        after = acting.rnn.step(nothing, mean, one)
        assert torch.allclose(carry["hidden"], after.hidden)
        _, other, _ = acting.policy.act(carry, second, mode="eval")
        later, _ = acting.vae.encoded(second.obs)
        assert torch.allclose(other, acting.controller.actions(weights, later, after))
    assert set(stored) == {"mean", "log_variance"}


def test_a_first_observation_forgets_the_memory() -> None:
    acting = Acting()
    carry, _, _ = acting.policy.act(acting.policy.initial(2), seen(2, is_first=True), mode="eval")
    _, one, _ = acting.policy.act(carry, seen(2, is_first=True, seed=1), mode="eval")
    _, other, _ = acting.policy.act(acting.policy.initial(2), seen(2, is_first=True, seed=1), mode="eval")
    assert torch.equal(one, other)


def test_samples_come_from_the_stream_of_the_mode() -> None:
    acting = Acting(acts_on="sample")
    state = acting.rngs["train"].get_state()
    one = acting.policy.act(acting.policy.initial(2), seen(2, is_first=True), mode="eval")[1]
    other = acting.policy.act(acting.policy.initial(2), seen(2, is_first=True), mode="eval")[1]
    assert not torch.equal(one, other)
    assert torch.equal(acting.rngs["train"].get_state(), state)


def test_random_weights_last_for_an_episode() -> None:
    controller = LinearController(space=THREE, latent_dim=2, memory_dim=4)
    weights, rng = RandomWeights(controller), torch.Generator().manual_seed(0)
    begun = weights.next(weights.begin(3), torch.ones(3, dtype=torch.bool), rng)
    assert len(begun.unique(dim=0)) == 3
    later = weights.next(begun, torch.tensor([False, True, False]), rng)
    assert torch.equal(later[[0, 2]], begun[[0, 2]])
    assert not torch.equal(later[1], begun[1])


def test_given_weights_are_one_row_for_each_environment_or_one_for_all() -> None:
    weights = GivenWeights(torch.device("cpu"))
    weights.present = torch.arange(6.0).view(2, 3)
    assert torch.equal(weights.begin(2), weights.present)
    weights.present = weights.present[:1]
    assert weights.begin(4).shape == (4, 3)


def actions_of(policy: BrownianPolicy | HeldPolicy, steps: int, *, firsts: tuple[int, ...] = (0,)) -> Tensor:
    carry, found = policy.initial(50), []
    for step in range(steps):
        carry, action, stored = policy.act(carry, seen(50, is_first=step in firsts), mode="train")
        assert stored == {}
        found.append(action)
    return torch.stack(found)


def rngs() -> dict[str, torch.Generator]:
    return {"train": torch.Generator().manual_seed(0), "eval": torch.Generator().manual_seed(1)}


def test_brownian_actions_walk() -> None:
    found = actions_of(BrownianPolicy(space=STEER, rngs=rngs(), interval=0.02), 40)
    assert float(found.abs().max()) <= 1
    steps = found.diff(dim=0)[found[1:].abs() < 0.5]
    assert float(steps.std()) == pytest.approx(math.sqrt(0.02), rel=0.1)
    assert float(found[0].std()) == pytest.approx(1 / math.sqrt(3), rel=0.15), "an episode begins anywhere"


def test_held_actions_are_held_and_all_lengths_occur() -> None:
    found = actions_of(HeldPolicy(space=THREE, rngs=rngs(), longest=3), 60)
    is_new = (found.diff(dim=0) != 0).float().mean()
    # A new draw comes after 2 steps on average and differs in two cases out of three.
    assert float(is_new) == pytest.approx(1 / 3, abs=0.03)


def test_a_new_episode_lets_go_of_the_held_action() -> None:
    found = actions_of(HeldPolicy(space=THREE, rngs=rngs(), longest=1000), 3, firsts=(0, 2))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_brownian_actions_are_numbers() -> None:
    with pytest.raises(ReverieError, match="discrete"):
        BrownianPolicy(space=THREE, rngs=rngs())
