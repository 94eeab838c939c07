"""Policies that end at -1 and 1 against torch's distributions and numerical integrals, and what their outputs make."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal as TorchNormal
from torch.distributions import TanhTransform, TransformedDistribution

from reverie.components.networks.action_distributions import TanhNormal, TruncatedNormal
from reverie.components.networks.actions import NormalOutput, TanhNormalOutput, TruncatedNormalOutput
from reverie.components.networks.distributions import Normal, OneHot, OneHots

MEANS = torch.tensor([[-0.9, 0.0, 0.3], [0.99, -0.2, 0.6]])
STDDEVS = torch.tensor([[0.1, 0.5, 2.1], [1.0, 0.3, 0.7]])


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def many(kind: type[TanhNormal] | type[TruncatedNormal], mean: float, stddev: float, count: int = 40_000) -> Tensor:
    return kind(torch.full((count, 1), mean), torch.full((count, 1), stddev)).sample(rng()).squeeze(-1)


def grid_density(policy: TanhNormal | TruncatedNormal, points: Tensor) -> Tensor:
    """The density at every point, of a policy with one dimension."""
    return policy.log_prob(points.unsqueeze(-1)).exp()


# Tanh-normal


def test_the_tanh_normal_has_the_log_probabilities_of_torch() -> None:
    action = torch.tensor([[-0.5, 0.2, 0.9], [0.1, -0.7, 0.0]])
    expected = TransformedDistribution(TorchNormal(MEANS.double(), STDDEVS.double()), [TanhTransform()])
    ours = TanhNormal(MEANS, STDDEVS).log_prob(action)
    torch.testing.assert_close(ours, expected.log_prob(action.double()).sum(-1).float(), rtol=1e-4, atol=1e-4)


def test_the_tanh_normal_is_finite_at_the_borders() -> None:
    policy = TanhNormal(torch.full((2, 1), 5.0), torch.full((2, 1), 5.0))
    assert policy.log_prob(torch.tensor([[1.0], [-1.0]])).isfinite().all()
    assert policy.entropy().isfinite().all()


@pytest.mark.parametrize(("mean", "stddev"), [(0.0, 0.3), (0.8, 1.0), (-2.0, 2.0)])
def test_the_entropy_of_the_tanh_normal(mean: float, stddev: float) -> None:
    """Against the mean over samples of its definition."""
    normal = TorchNormal(torch.tensor(mean, dtype=torch.float64), torch.tensor(stddev, dtype=torch.float64))
    points = normal.icdf((torch.arange(100_000, dtype=torch.float64) + 0.5) / 100_000)
    slope = 2 * (math.log(2) - points - torch.nn.functional.softplus(-2 * points))
    expected = float(normal.entropy() + slope.mean())
    ours = TanhNormal(torch.tensor([mean]), torch.tensor([stddev])).entropy()
    assert float(ours) == pytest.approx(expected, abs=0.01)


def test_the_most_likely_action_of_the_tanh_normal_is_the_peak_of_its_density() -> None:
    for mean, stddev in ((0.5, 0.2), (-0.3, 0.4), (0.2, 2.0)):
        policy = TanhNormal(torch.tensor([mean]), torch.tensor([stddev]))
        points = torch.linspace(-0.999, 0.999, 2001)
        density = grid_density(policy, points)
        found = policy.sample(None)
        assert float(grid_density(policy, found)) >= 0.97 * float(density.max())
    two = TanhNormal(torch.tensor([[0.5, -0.3]]), torch.tensor([[0.2, 0.4]])).sample(None)
    apart = [TanhNormal(torch.tensor([m]), torch.tensor([s])).sample(None) for m, s in ((0.5, 0.2), (-0.3, 0.4))]
    torch.testing.assert_close(two[0], torch.cat(apart))


# Truncated normal


@pytest.mark.parametrize(("mean", "stddev"), [(0.0, 2.1), (0.9, 0.5), (-0.999, 0.1)])
def test_the_truncated_normal_is_a_density_with_its_entropy(mean: float, stddev: float) -> None:
    policy = TruncatedNormal(torch.tensor([mean]), torch.tensor([stddev]))
    points = torch.linspace(-1, 1, 20_001)
    density = grid_density(policy, points)
    assert float(torch.trapezoid(density, points)) == pytest.approx(1.0, abs=1e-3)
    entropy = -float(torch.trapezoid(torch.special.xlogy(density, density), points))
    assert float(policy.entropy()) == pytest.approx(entropy, abs=2e-3)
    assert float(policy.sample(None)) == pytest.approx(mean)


@pytest.mark.parametrize(("mean", "stddev"), [(0.0, 2.1), (0.9, 0.5), (-0.999, 0.1)])
def test_samples_of_the_truncated_normal_stay_inside_and_have_its_mean(mean: float, stddev: float) -> None:
    drawn = many(TruncatedNormal, mean, stddev)
    assert drawn.abs().max() < 1
    points = torch.linspace(-1, 1, 20_001)
    density = grid_density(TruncatedNormal(torch.tensor([mean]), torch.tensor([stddev])), points)
    assert float(drawn.mean()) == pytest.approx(float(torch.trapezoid(density * points, points)), abs=0.02)


# Gradients


@pytest.mark.parametrize("kind", [Normal, TanhNormal, TruncatedNormal])
def test_samples_are_differentiable_functions_of_both_parameters(kind: type[Normal]) -> None:
    """The derivative by finite differences, under the same noise."""
    step = 1e-3

    def sample(mean: Tensor, stddev: Tensor) -> Tensor:
        return kind(mean, stddev).sample(rng()).sum()

    mean, stddev = torch.tensor([[0.2, -0.4]], requires_grad=True), torch.tensor([[0.3, 0.5]], requires_grad=True)
    found = torch.autograd.grad(sample(mean, stddev), [mean, stddev])
    with torch.no_grad():
        for index, grad in enumerate(found):
            for i in range(2):
                shift = torch.zeros(2, 1, 2)
                shift[index, 0, i] = step
                high, low = sample(mean + shift[0], stddev + shift[1]), sample(mean - shift[0], stddev - shift[1])
                assert float(grad[0, i]) == pytest.approx(float(high - low) / (2 * step), abs=5e-3)


def test_discrete_choices_have_the_gradient_of_their_probabilities() -> None:
    logits = torch.tensor([[0.5, -1.0, 0.2, 0.1, 0.4]], requires_grad=True)
    one = OneHot(logits)
    vector = one.vector(torch.tensor([2]))
    assert vector.tolist() == [[0, 0, 1, 0, 0]]
    weights = torch.arange(5.0)
    (straight,) = torch.autograd.grad((vector * weights).sum(), logits)
    (expected,) = torch.autograd.grad((OneHot(logits).probs * weights).sum(), logits)
    torch.testing.assert_close(straight, expected)
    several = OneHots(logits, (2, 3)).vector(torch.tensor([[1, 0]]))
    assert several.tolist() == [[0, 1, 1, 0, 0]]
    assert several.requires_grad


# Outputs


def zeroed(output: torch.nn.Module, mean: float, stddev: float) -> torch.nn.Module:
    """The same numbers before the last squashing, whatever the features."""
    for name, value in (("mean", mean), ("stddev", stddev)):
        layer = output.get_submodule(name)
        assert isinstance(layer, torch.nn.Linear)
        torch.nn.init.zeros_(layer.weight)
        torch.nn.init.constant_(layer.bias, value)
    return output


def test_the_squashing_of_dreamer_v1() -> None:
    policy = zeroed(TanhNormalOutput(4, 1, outscale=1.0), 3.0, 0.0)(torch.randn(2, 4, generator=rng()))
    assert isinstance(policy, TanhNormal)
    torch.testing.assert_close(policy.normal.mean, torch.full((2, 1), 5 * math.tanh(3 / 5)))
    torch.testing.assert_close(policy.normal.stddev, torch.full((2, 1), 5.0 + 1e-4))  # softplus of raw_init is 5
    other = zeroed(TanhNormalOutput(4, 1, outscale=1.0), 0.0, -2.0)(torch.zeros(1, 4))
    raw = math.log(math.expm1(5))
    assert float(other.normal.stddev.detach()) == pytest.approx(math.log1p(math.exp(raw - 2)) + 1e-4, rel=1e-5)


def test_the_squashing_of_dreamer_v2() -> None:
    policy = zeroed(TruncatedNormalOutput(4, 1, outscale=1.0), 0.7, 1.5)(torch.zeros(1, 4))
    assert isinstance(policy, TruncatedNormal)
    assert float(policy.normal.mean.detach()) == pytest.approx(math.tanh(0.7))
    assert float(policy.normal.stddev.detach()) == pytest.approx(2 / (1 + math.exp(-0.75)) + 0.1)


def test_samples_that_are_scaled_back_end_at_the_border_and_keep_their_gradient() -> None:
    mean = torch.full((1000, 1), 0.9, requires_grad=True)
    free, bounded = (Normal(mean, torch.ones(1000, 1), is_scaled_back=flag).sample(rng()) for flag in (False, True))
    assert free.detach().abs().max() > 2
    assert bounded.detach().abs().max() <= 1
    inside = free.detach().abs() < 1
    assert torch.equal(free[inside], bounded[inside])
    (grad,) = torch.autograd.grad(bounded.sum(), mean)
    torch.testing.assert_close(grad, 1 / free.detach().abs().clamp(min=1))
    output = NormalOutput(4, 1, outscale=1.0, is_scaled_back=True)(torch.zeros(500, 4))
    assert output.sample(rng()).detach().abs().max() <= 1
