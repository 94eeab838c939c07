"""Output distributions against the published code."""

from __future__ import annotations

import pytest
import torch
from reference import FORWARD, GRADIENT, arrays, assert_near, assert_rows_near
from torch.nn import functional as F

from reverie.components.networks.actions import ActionHead
from reverie.components.networks.distributions import Binary, OneHot, SymlogMse, TwoHot, kl_divergence, symexp_bins
from reverie.components.networks.heads import BinaryHead, TwoHotHead
from reverie.components.networks.symlog import symlog
from reverie.types import Space

BLOCKS = arrays("blocks")
UNIMIX = 0.01


def two_hot() -> TwoHot:
    return TwoHot(BLOCKS["twohot/logits"], symexp_bins(255))


@pytest.mark.parametrize(("count", "name"), [(255, "twohot"), (8, "twohot_even")])
def test_bins(count: int, name: str) -> None:
    bins = symexp_bins(count)
    assert_near(bins, BLOCKS[f"{name}/bins"], 1e-6)
    torch.testing.assert_close(bins, BLOCKS[f"{name}/bins"], rtol=5e-6, atol=0)  # one ulp of an exponent near 20
    assert torch.equal(bins, -bins.flip(0))


def test_two_hot_loss_of_each_target() -> None:
    assert_rows_near(two_hot().loss(BLOCKS["twohot/target"]), BLOCKS["twohot/loss"], FORWARD)


def test_two_hot_gradient() -> None:
    logits = BLOCKS["twohot/logits"].clone().requires_grad_()
    loss = TwoHot(logits, symexp_bins(255)).loss(BLOCKS["twohot/target"]).sum()
    assert_rows_near(torch.autograd.grad(loss, logits)[0], BLOCKS["twohot/grad_loss_sum"], GRADIENT)


def test_two_hot_prediction() -> None:
    mean, expected = two_hot().mean(), BLOCKS["twohot/pred"]
    assert mean[0] == 0
    assert_rows_near(mean[1:6], expected[1:6], GRADIENT)  # nearly flat: bins of 5e8 cancel
    assert_rows_near(mean[6:], expected[6:], FORWARD)


@pytest.mark.parametrize("count", [5, 8, 63, 127, 255])
def test_zero_logits_predict_exactly_zero(count: int) -> None:
    assert torch.equal(TwoHot(torch.zeros(4, count), symexp_bins(count)).mean(), torch.zeros(4))


def test_a_fresh_two_hot_head_predicts_exactly_zero_and_a_fresh_policy_is_nearly_uniform() -> None:
    feature = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    assert not TwoHotHead(feature_dim=10, layers=1, units=8)(feature).mean().any()
    policy = ActionHead(space=Space(shape=(), dtype="int64", classes=4), feature_dim=10, layers=3, units=64)(feature)
    assert isinstance(policy, OneHot)
    probs = policy.probs
    assert torch.allclose(probs, torch.full_like(probs, 0.25), atol=0.02)
    assert not torch.equal(probs, torch.full_like(probs, 0.25))
    assert BinaryHead(feature_dim=10, layers=1, units=8)(feature).mean().std() > 0


def mixed(name: str = "categorical/logits1") -> OneHot:
    return OneHot(BLOCKS[name], unimix=UNIMIX)


def test_one_hot_with_unimix() -> None:
    event = BLOCKS["categorical/event"].long()
    assert_near(mixed().log_probs, BLOCKS["categorical/mixed_logits"])
    assert_near(mixed().entropy(), BLOCKS["categorical/entropy"])
    assert_near(mixed().log_prob(event), BLOCKS["categorical/logp"])
    assert_near(mixed().loss(event), -BLOCKS["categorical/logp"])
    assert torch.equal(
        F.one_hot(mixed().sample(None), 6).float(),
        BLOCKS["categorical/argmax_sample"],
    )


def test_one_hot_without_unimix() -> None:
    plain = OneHot(BLOCKS["categorical/logits1"])
    assert_near(plain.entropy(), BLOCKS["categorical/plain_entropy"])
    assert_near(plain.log_prob(BLOCKS["categorical/event"].long()), BLOCKS["categorical/plain_logp"])


def test_straight_through_is_an_exact_one_hot_with_the_gradient_of_the_probabilities() -> None:
    logits = BLOCKS["categorical/logits1"].clone().requires_grad_()
    distribution = OneHot(logits, unimix=UNIMIX)
    sample = distribution.straight_through(distribution.sample(None))
    assert torch.equal(sample.detach(), BLOCKS["categorical/argmax_sample"])
    (grad,) = torch.autograd.grad((sample * BLOCKS["categorical/cotangent"]).sum(), logits)
    assert_near(grad, BLOCKS["categorical/grad_straight_through"], GRADIENT)
    with torch.no_grad():
        assert torch.equal(distribution.straight_through(distribution.sample(None)), sample)


def test_kl_and_which_side_each_of_the_two_moves() -> None:
    ours = [BLOCKS[f"categorical/logits{i}"].clone().requires_grad_() for i in (1, 2)]
    to_other, to_one = kl_divergence(*(OneHot(logits, unimix=UNIMIX) for logits in ours))
    for kl in (to_other, to_one):
        assert_near(kl, BLOCKS["categorical/kl"])
        assert_near(kl.sum(-1), BLOCKS["categorical/kl_summed"])
    none, moved = torch.autograd.grad(to_other.sum(), ours, materialize_grads=True)
    assert not none.any()
    assert_near(moved, BLOCKS["categorical/grad_kl_logits2"], GRADIENT)
    moved, none = torch.autograd.grad(to_one.sum(), ours, materialize_grads=True)
    assert not none.any()
    assert_near(moved, BLOCKS["categorical/grad_kl_logits1"], GRADIENT)


def test_samples_follow_the_probabilities_and_the_stream() -> None:
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    distribution = OneHot(logits.expand(40_000, 4), unimix=UNIMIX)
    drawn = distribution.sample(torch.Generator().manual_seed(3))
    assert torch.equal(drawn, distribution.sample(torch.Generator().manual_seed(3)))
    assert not torch.equal(drawn, distribution.sample(torch.Generator().manual_seed(4)))
    share = torch.bincount(drawn, minlength=4) / len(drawn)
    assert torch.allclose(share, distribution.probs[0], atol=0.01)
    assert not torch.allclose(share, logits.neg().softmax(-1), atol=0.01)


def test_binary() -> None:
    binary = Binary(BLOCKS["binary/logit"])
    assert_near(binary.mean(), BLOCKS["binary/prob1"])
    loss = binary.loss(BLOCKS["binary/target"])
    torch.testing.assert_close(loss, BLOCKS["binary/loss"], rtol=FORWARD, atol=1e-7)


def test_symlog_mse_sums_over_the_vector_without_a_half() -> None:
    rng = torch.Generator().manual_seed(0)
    prediction, target = torch.randn(3, 2, 5, generator=rng), 100 * torch.randn(3, 2, 5, generator=rng)
    expected = (prediction - symlog(target)).square().sum(-1)
    assert_near(SymlogMse(prediction).loss(target), expected)
    assert_near(symlog(SymlogMse(prediction).mean()), prediction)
