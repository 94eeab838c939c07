"""Actors for every action space, and what is added to their actions in training."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from reference import arrays, assert_near
from small_dreamer import small_dreamer
from torch.distributions import Categorical
from torch.distributions import Normal as TorchNormal

from reverie.components.controllers.exploration import Exploration
from reverie.components.networks.actions import ActionHead, NormalOutput
from reverie.components.networks.distributions import Normal, OneHot, OneHots
from reverie.interop.links import dense, load
from reverie.types import Observation, ReverieError, Space, Spaces

BLOCKS = arrays("blocks")
DISCRETE = Space(shape=(), dtype="int64", classes=5)
SEVERAL = Space(shape=(3,), dtype="int64", classes=(2, 4, 3))
CONTINUOUS = Space(shape=(2,), dtype="float32")
OBS = {"vector": Space(shape=(4,), dtype="float32")}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def head(space: Space, **settings: Any) -> ActionHead:
    torch.manual_seed(0)
    return ActionHead(space=space, feature_dim=6, layers=1, units=8, **{"outscale": 1.0, **settings})


def feature(count: int = 7) -> torch.Tensor:
    return torch.randn(count, 6, generator=rng())


def test_the_bounded_normal_of_the_reference() -> None:
    output = NormalOutput(6, 3, outscale=1.0, min_stddev=0.1, max_stddev=1.0)
    given = {
        f"{part}/{kind}": BLOCKS[f"bounded_normal/param/{part}/{kind}"].numpy()
        for part in ("mean", "stddev")
        for kind in ("kernel", "bias")
    }
    load([*dense("mean", output.mean), *dense("stddev", output.stddev)], given)
    policy = output(BLOCKS["bounded_normal/x"])
    assert_near(policy.mean, BLOCKS["bounded_normal/mean"])
    assert_near(policy.stddev, BLOCKS["bounded_normal/stddev"])
    assert_near(policy.entropy(), BLOCKS["bounded_normal/entropy"])
    assert_near(policy.log_prob(BLOCKS["bounded_normal/action"]), BLOCKS["bounded_normal/logp"])


def test_the_continuous_policy_of_the_reference_s_losses() -> None:
    file = arrays("returns")
    policy = Normal(file["imag/policy_mean"], file["imag/policy_stddev"])
    expected = TorchNormal(policy.mean.double(), policy.stddev.double())
    action = file["imag/action_continuous"]
    assert_near(policy.log_prob(action), expected.log_prob(action.double()).sum(-1))
    assert_near(policy.entropy()[:, :-1].mean(), file["imag_continuous/metric/ent/action"])


def test_a_continuous_sample_follows_its_stream_and_is_not_clipped() -> None:
    policy = Normal(torch.full((20_000, 1), 0.9), torch.full((20_000, 1), 0.5))
    sample = policy.sample(rng())
    assert float(sample.mean()) == pytest.approx(0.9, abs=0.02)
    assert float(sample.std()) == pytest.approx(0.5, abs=0.02)
    assert sample.max() > 1.5
    assert torch.equal(sample, policy.sample(rng()))
    assert not torch.equal(sample, policy.sample(rng(1)))
    assert torch.equal(policy.sample(None), policy.mean)


def test_independent_classes_add_their_log_probabilities_and_entropies() -> None:
    policy = head(SEVERAL)(feature())
    assert isinstance(policy, OneHots)
    action = policy.sample(rng())
    assert action.shape == (7, 3)
    parts = [Categorical(logits=one.logits) for one in policy.elements]
    log_probs = torch.stack([part.log_prob(action[:, i]) for i, part in enumerate(parts)])
    torch.testing.assert_close(policy.log_prob(action), log_probs.sum(0))
    torch.testing.assert_close(policy.entropy(), torch.stack([part.entropy() for part in parts]).sum(0))
    assert not torch.allclose(policy.log_prob(action), log_probs.mean(0))
    assert torch.equal(policy.sample(None), torch.stack([one.logits.argmax(-1) for one in policy.elements], -1))


@pytest.mark.parametrize("space", [DISCRETE, SEVERAL])
def test_the_uniform_mix_is_a_floor_for_every_class(space: Space) -> None:
    def smallest(unimix: float) -> float:
        actor = head(space, unimix=unimix)
        with torch.no_grad():
            for parameter in actor.output.parameters():
                parameter.mul_(100)
        policy = actor(feature())
        elements = policy.elements if isinstance(policy, OneHots) else [policy]
        return min(float(one.probs.detach().min()) for one in elements if isinstance(one, OneHot))

    assert smallest(0.0) < 1e-6
    assert smallest(0.01) >= 0.01 / 5 * 0.999


@pytest.mark.parametrize(
    ("space", "action", "vector"),
    [
        (DISCRETE, [3], [[0, 0, 0, 1, 0]]),
        (SEVERAL, [[1, 0, 2]], [[0, 1, 1, 0, 0, 0, 0, 0, 1]]),
        (CONTINUOUS, [[1.5, -0.25]], [[1.5, -0.25]]),
    ],
)
def test_an_action_as_a_vector(space: Space, action: list[float], vector: list[list[float]]) -> None:
    assert head(space).vector(torch.tensor(action)).tolist() == vector
    assert len(vector[0]) == space.dim


def test_deviations_stay_between_their_bounds() -> None:
    policy = head(CONTINUOUS, continuous=partial(NormalOutput, min_stddev=0.2, max_stddev=0.6))(100 * feature())
    assert isinstance(policy, Normal)
    assert float(policy.stddev.detach().min()) >= 0.2
    assert float(policy.stddev.detach().max()) <= 0.6
    assert policy.mean.abs().max() <= 1
    fresh = head(CONTINUOUS, outscale=0.0)(feature())
    assert isinstance(fresh, Normal)
    assert float(fresh.stddev.detach()[0, 0]) == pytest.approx(0.9 / (1 + math.exp(-2)) + 0.1)


def test_a_continuous_action_that_is_no_vector_is_refused() -> None:
    with pytest.raises(ReverieError, match=r"\(2, 2\)"):
        head(Space(shape=(2, 2), dtype="float32"))


# Exploration


def test_epsilon_replaces_a_share_of_the_actions_by_random_ones() -> None:
    action = torch.full((10_000,), 4)
    explored = Exploration(epsilon=0.3).explored(action, DISCRETE, rng())
    assert float((explored != 4).float().mean()) == pytest.approx(0.3 * 4 / 5, abs=0.02)
    many = Exploration(epsilon=1.0).explored(torch.zeros(1000, 3, dtype=torch.int64), SEVERAL, rng())
    assert many.amax(0).tolist() == [1, 3, 2]
    assert many.dtype == torch.int64


def test_noise_is_added_to_continuous_actions() -> None:
    explored = Exploration(action_noise=0.3).explored(torch.ones(10_000, 2), CONTINUOUS, rng())
    assert float(explored.std()) == pytest.approx(0.3, abs=0.01)
    assert float(explored.mean()) == pytest.approx(1.0, abs=0.01)


def test_without_options_nothing_is_drawn() -> None:
    stream, action = rng(), torch.ones(5, 2)
    before = stream.get_state()
    assert torch.equal(Exploration().explored(action, CONTINUOUS, stream), action)
    assert torch.equal(stream.get_state(), before)


@pytest.mark.parametrize(
    ("space", "override", "complaint"),
    [
        (DISCRETE, "workflow.exploration.action_noise=0.1", "needs continuous actions"),
        (CONTINUOUS, "workflow.exploration.epsilon=0.1", "needs discrete actions"),
        (DISCRETE, "workflow.exploration.epsilon=1.1", "from 0 to 1"),
    ],
)
def test_an_option_that_does_nothing_here_is_refused(space: Space, override: str, complaint: str) -> None:
    with pytest.raises(ReverieError, match=complaint):
        small_dreamer(override, spaces=Spaces(obs=OBS, action=space))


def test_the_policy_explores_in_training_and_is_greedy_in_evaluation_when_asked() -> None:
    def actions(mode: str, *overrides: str) -> torch.Tensor:
        spaces = Spaces(obs=OBS, action=CONTINUOUS)
        policy = small_dreamer(*overrides, "controller.actor.continuous.max_stddev=0.1", spaces=spaces).policy(None)
        flags = torch.zeros(500, dtype=torch.bool)
        seen = Observation(
            obs={"vector": torch.zeros(500, 4)}, reward=flags.float(), is_first=~flags, is_last=flags, is_terminal=flags
        )
        return policy.act(policy.initial(500), seen, mode="train" if mode == "train" else "eval")[1]

    noisy = "workflow.exploration.action_noise=2.0"
    greedy = "workflow.exploration.evaluates_greedily=true"
    assert actions("train", noisy).std() > 1.5
    assert 0.05 < actions("eval", noisy).std() < 0.2
    assert actions("eval", greedy).std() < 0.02
    assert 0.05 < actions("train", greedy).std() < 0.2
