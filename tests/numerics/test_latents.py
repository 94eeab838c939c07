"""The two kinds of latents against torch's own distributions, and what replay keeps of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.distributions import Normal, OneHotCategorical, kl_divergence
from torch.nn import functional as F

from reverie.components.representation_learners.latents import CategoricalLatents, GaussianLatents, Latent, LatentKind
from reverie.types import ReverieError

STOCH, CLASSES = 3, 5
CATEGORICAL, GAUSSIAN = CategoricalLatents(stoch=STOCH, classes=CLASSES, unimix=0.0), GaussianLatents(stoch=STOCH)
KINDS = [CATEGORICAL, GAUSSIAN]


def parameters(kind: LatentKind, seed: int) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(4, 2, STOCH, kind.parameter_width, generator=rng)).requires_grad_()


def drawn(kind: LatentKind, seed: int) -> Tensor:
    noise = kind.noise((4, 2), torch.device("cpu"), torch.Generator().manual_seed(seed))
    assert noise is not None
    return noise


def torch_distribution(kind: LatentKind, given: Tensor) -> OneHotCategorical | Normal:
    if kind is CATEGORICAL:
        return OneHotCategorical(logits=given)
    return Normal(given[..., 0], torch.log1p(given[..., 1].exp()) + 0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kl_is_that_of_torch_and_its_halves_move_one_side_each(kind: LatentKind) -> None:
    posterior, prior = parameters(kind, 0), parameters(kind, 1)
    to_prior, to_posterior = kind.kl(posterior, prior)
    expected = kl_divergence(torch_distribution(kind, posterior), torch_distribution(kind, prior))
    assert expected.shape == (4, 2, STOCH)
    torch.testing.assert_close(to_prior, expected)
    torch.testing.assert_close(to_posterior, expected)
    by_prior = torch.autograd.grad(to_prior.sum(), (posterior, prior), materialize_grads=True, retain_graph=True)
    by_posterior = torch.autograd.grad(to_posterior.sum(), (posterior, prior), materialize_grads=True)
    whole = torch.autograd.grad(expected.sum(), (posterior, prior))
    assert float(by_prior[0].abs().max()) == float(by_posterior[1].abs().max()) == 0.0
    # Both halves with weight 1 pull as the plain KL does.
    torch.testing.assert_close(by_posterior[0], whole[0])
    torch.testing.assert_close(by_prior[1], whole[1])


@pytest.mark.parametrize("kind", KINDS)
def test_the_entropy_is_that_of_torch(kind: LatentKind) -> None:
    given = parameters(kind, 0)
    torch.testing.assert_close(kind.distribution(given).entropy(), torch_distribution(kind, given).entropy())


def test_gaussian_samples_carry_gradients_to_mean_and_deviation() -> None:
    given = parameters(GAUSSIAN, 0)
    noise = drawn(GAUSSIAN, 3)
    sample = GAUSSIAN.sample(given, noise)
    stddev = F.softplus(given[..., 1:]) + 0.1
    torch.testing.assert_close(sample, given[..., :1] + stddev * noise)
    (grad,) = torch.autograd.grad(sample.sum(), given)
    torch.testing.assert_close(grad[..., 0], torch.ones(4, 2, STOCH))
    torch.testing.assert_close(grad[..., 1:], noise * torch.sigmoid(given[..., 1:]))
    assert torch.equal(GAUSSIAN.sample(given, None), given[..., :1])


def test_categorical_samples_are_one_hots_with_the_gradient_of_the_probabilities() -> None:
    given = parameters(CATEGORICAL, 0)
    sample = CATEGORICAL.sample(given, drawn(CATEGORICAL, 3))
    assert torch.equal(sample.detach(), F.one_hot(sample.argmax(-1), CLASSES).float())
    cotangent = torch.randn(sample.shape, generator=torch.Generator().manual_seed(4))
    (grad,) = torch.autograd.grad((sample * cotangent).sum(), given)
    (expected,) = torch.autograd.grad((given.softmax(-1) * cotangent).sum(), given)
    torch.testing.assert_close(grad, expected)
    assert torch.equal(CATEGORICAL.sample(given, None).argmax(-1), given.argmax(-1))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_stored_comes_back_and_is_small(kind: LatentKind) -> None:
    sample = kind.sample(parameters(kind, 0), drawn(kind, 0)).detach()
    stored = kind.stored(sample)
    assert stored.shape == (4, 2, STOCH)
    assert stored.element_size() == (1 if kind is CATEGORICAL else 2)
    restored = kind.restored(stored)
    assert restored.dtype == torch.float32
    assert restored.shape == sample.shape
    torch.testing.assert_close(restored, sample, rtol=1 / 256, atol=0)  # the precision of bfloat16
    # What went through replay once does not change again: a resumed run sees the same numbers.
    assert torch.equal(kind.stored(restored), stored)


@pytest.mark.parametrize("kind", KINDS)
def test_a_latent_of_either_kind_flattens_and_joins_its_parts(kind: LatentKind) -> None:
    stoch = kind.sample(parameters(kind, 0), None)
    latent = Latent(deter=torch.randn(4, 2, 7), stoch=stoch)
    assert latent.stoch_vector.shape == (4, 2, STOCH * kind.width)
    assert latent.feature.shape == (4, 2, 7 + STOCH * kind.width)
    flat = latent.flatten()
    assert torch.equal(flat.feature, latent.feature.flatten(0, 1))
    assert not latent.detach().stoch.requires_grad


def test_distributions_are_float32_under_bfloat16() -> None:
    given = parameters(GAUSSIAN, 0).detach().bfloat16()
    assert GAUSSIAN.sample(given, drawn(GAUSSIAN, 0)).dtype == torch.float32
    assert all(half.dtype == torch.float32 for half in GAUSSIAN.kl(given, given))


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: CategoricalLatents(stoch=2, classes=257), "classes of the latents.*to 256"),
        (lambda: CategoricalLatents(stoch=2, classes=4, unimix=1.5), "unimix"),
        (lambda: CategoricalLatents(stoch=0, classes=4), "stoch"),
        (lambda: GaussianLatents(stoch=0), "stoch"),
        (lambda: GaussianLatents(stoch=2, min_stddev=-1.0), "min_stddev"),
    ],
)
def test_numbers_out_of_range_are_refused(make: object, complaint: str) -> None:
    assert callable(make)
    with pytest.raises(ReverieError, match=complaint):
        make()
