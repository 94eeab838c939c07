"""The MDN-RNN: its size, its mixtures against scipy, its LSTM against torch's, temperature, and time."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor, nn

from reverie.components.controllers.linear_controller import LinearController
from reverie.components.dynamics.gaussian_mixture import GaussianMixture
from reverie.components.dynamics.mdn_rnn import MdnRnn, Memory
from reverie.types import Space


def mixture(*, dims: int = 3, count: int = 5, rows: int = 7) -> GaussianMixture:
    rng = torch.Generator().manual_seed(2)
    logits, mean, log_stddev = torch.randn(3, rows, dims, count, generator=rng)
    return GaussianMixture(logits=logits, mean=2 * mean, log_stddev=log_stddev)


def made(**heads: bool) -> MdnRnn:
    torch.manual_seed(0)
    return MdnRnn(latent_dim=3, action_dim=2, units=6, mixtures=4, **heads)


@pytest.mark.parametrize(
    ("sizes", "heads", "expected"),
    [
        ({"latent_dim": 32, "action_dim": 3, "units": 256}, {}, 422_368),
        # Doom's reads the action and whether the episode began anew, and has the logit of its end.
        ({"latent_dim": 64, "action_dim": 2, "units": 512}, {"has_termination_head": True}, 1_678_785),
    ],
)
def test_the_published_number_of_parameters(sizes: dict[str, int], heads: dict[str, bool], expected: int) -> None:
    rnn = MdnRnn(**sizes, mixtures=5, **heads)
    assert sum(one.numel() for one in rnn.parameters()) == expected


def test_the_published_number_of_weights_of_the_controller() -> None:
    controller = LinearController(space=Space(shape=(3,), dtype="float32"), latent_dim=32, memory_dim=256)
    assert controller.parameter_count == 867


def test_the_density_is_that_of_scipys_normals_mixed() -> None:
    found = mixture()
    # The class computes in float32; the formula is checked in float64.
    found.logits, found.mean, found.log_stddev = (one.double() for one in (found.logits, found.mean, found.log_stddev))
    value = torch.linspace(-3, 3, 21, dtype=torch.float64).view(7, 3)
    weights = scipy.special.softmax(found.logits.numpy(), axis=-1)
    normals = scipy.stats.norm.pdf(value.numpy()[..., None], found.mean.numpy(), np.exp(found.log_stddev.numpy()))
    expected = np.log((weights * normals).sum(-1))
    assert found.log_prob(value).numpy() == pytest.approx(expected, rel=1e-12)


def test_a_density_far_out_is_finite() -> None:
    found = mixture().log_prob(torch.full((7, 3), 1e3))
    assert bool(found.isfinite().all())


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.5])
def test_samples_have_the_moments_of_the_tempered_mixture(temperature: float) -> None:
    """Logits over the temperature, variances times it: in float64, by the law of total variance."""
    one = mixture(dims=1, rows=1)
    rng, count = torch.Generator().manual_seed(3), 200_000
    many = GaussianMixture(
        logits=one.logits.expand(count, -1, -1),
        mean=one.mean.expand(count, -1, -1),
        log_stddev=one.log_stddev.expand(count, -1, -1),
    )
    uniform, noise = torch.rand(count, 1, generator=rng), torch.randn(count, 1, generator=rng)
    drawn = many.sample(uniform, noise, temperature=temperature).double()
    weights = (one.logits.double() / temperature).softmax(-1).flatten()
    mean, variance = one.mean.double().flatten(), (2 * one.log_stddev.double()).exp().flatten() * temperature
    expected = float(weights @ mean)
    spread = float(weights @ (variance + mean.square())) - expected**2
    assert float(drawn.mean()) == pytest.approx(expected, abs=5 * math.sqrt(spread / count))
    assert float(drawn.var()) == pytest.approx(spread, rel=0.03)


def test_each_number_has_weights_of_its_own() -> None:
    """The first number is always in its first normal, the second in its last."""
    logits = torch.tensor([[[50.0, 0.0], [0.0, 50.0]]])
    mean = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    one = GaussianMixture(logits=logits, mean=mean, log_stddev=torch.full_like(mean, -20.0))
    drawn = one.sample(torch.full((1, 2), 0.5), torch.zeros(1, 2))
    assert drawn.tolist() == one.most_likely().tolist() == [[1.0, 4.0]]


def test_the_largest_uniform_number_takes_the_last_normal() -> None:
    one = mixture(dims=1, rows=1)
    highest = torch.full((1, 1), 1 - 2**-24)
    assert one.sample(highest, torch.zeros(1, 1)).item() == one.mean[0, 0, -1].item()


def lstm_like(rnn: MdnRnn) -> nn.LSTMCell:
    """torch's cell with the same weights; it orders its gates as input, forget, candidate, output."""
    cell = nn.LSTMCell(rnn.from_input.in_features, rnn.units)
    order = [0, 2, 1, 3]

    def parts(weight: Tensor) -> Tensor:
        chunks = weight.detach().chunk(4, 0)
        return torch.cat([chunks[index] for index in order])

    with torch.no_grad():
        cell.weight_ih.copy_(parts(rnn.from_input.weight))
        cell.weight_hh.copy_(parts(rnn.from_hidden.weight))
        cell.bias_ih.copy_(parts(rnn.from_input.bias))
        cell.bias_hh.zero_()
        cell.bias_hh[rnn.units : 2 * rnn.units] = 1.0  # the forget gate's
    return cell


def test_a_step_is_that_of_an_lstm() -> None:
    rnn = made()
    cell, rng = lstm_like(rnn), torch.Generator().manual_seed(4)
    memory = Memory(hidden=torch.randn(5, 6, generator=rng), cell=torch.randn(5, 6, generator=rng))
    latent, action = torch.randn(5, 3, generator=rng), torch.randn(5, 2, generator=rng)
    found = rnn.step(memory, latent, action)
    hidden, state = cell(torch.cat([latent, action], -1), (memory.hidden, memory.cell))
    assert torch.allclose(found.hidden, hidden, atol=1e-6)
    assert torch.allclose(found.cell, state, atol=1e-6)


def test_a_sequence_is_its_steps_and_forgets_where_an_episode_begins() -> None:
    rnn, rng = made(), torch.Generator().manual_seed(5)
    latent, action = torch.randn(2, 6, 3, generator=rng), torch.randn(2, 6, 2, generator=rng)
    is_first = torch.zeros(2, 6, dtype=torch.bool)
    is_first[0, 3] = True
    found = rnn.sequence(latent, action, is_first)
    memory = rnn.initial(2)
    for step in range(6):
        if step == 3:
            anew = torch.tensor([[0.0], [1.0]])
            memory = Memory(hidden=memory.hidden * anew, cell=memory.cell * anew)
        memory = rnn.step(memory, latent[:, step], action[:, step])
        assert torch.allclose(found[:, step], memory.hidden, atol=1e-6)
    fresh = rnn.sequence(latent[:1, 3:], action[:1, 3:], is_first[:1, 3:])
    assert torch.allclose(found[:1, 3:], fresh, atol=1e-6)


def test_losses_are_per_step_and_name_the_heads() -> None:
    rnn = made(has_reward_head=True, has_termination_head=True)
    hidden, latent = torch.randn(2, 5, 6), torch.randn(2, 5, 3)
    reward, ends = torch.randn(2, 5), torch.tensor([[True, False, False, False, True]] * 2)
    losses = rnn.losses(hidden, latent, reward=reward, is_terminal=ends, positive_weight=10.0)
    expected = rnn.expected(hidden)
    assert expected.reward is not None
    assert expected.termination is not None
    assert torch.allclose(losses["latent"], -expected.latent.log_prob(latent).mean(-1))
    assert torch.allclose(losses["reward"], (expected.reward - reward) ** 2)
    chance = expected.termination.sigmoid()
    assert torch.allclose(losses["termination"][ends], -10 * chance[ends].log(), atol=1e-5)
    assert torch.allclose(losses["termination"][~ends], -(1 - chance[~ends]).log(), atol=1e-5)
    assert set(made().losses(hidden, latent, reward=reward, is_terminal=ends, positive_weight=1.0)) == {"latent"}
