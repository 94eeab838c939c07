"""Heads that predict one number, and the norms and activations of the networks in them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.distributions import SymlogTwoHot, UnitNormal, symlog_bins
from reverie.components.networks.heads import BinaryHead, FixedContinue, NormalHead, SymlogTwoHotHead, TwoHotHead
from reverie.components.networks.layers import LAYER_NORM_EPSILON, Mlp, linear
from reverie.types import ReverieError

FEATURE, UNITS = 6, 8
TRAINED = [TwoHotHead, SymlogTwoHotHead, NormalHead, BinaryHead]


def feature() -> Tensor:
    return torch.randn(3, 4, FEATURE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", TRAINED)
@pytest.mark.parametrize(("norm", "activation"), [("rms", "silu"), ("layer", "silu"), ("none", "elu")])
@pytest.mark.parametrize("layers", [1, 3])
def test_every_head_takes_every_style(kind: type[NormalHead], norm: str, activation: str, layers: int) -> None:
    given = {"norm": norm, "activation": activation, "layers": layers}
    head = kind(feature_dim=FEATURE, units=UNITS, outscale=1.0, **given)
    predicted = head(feature())
    assert predicted.mean().shape == (3, 4)
    loss = predicted.loss(torch.rand(3, 4))
    assert loss.shape == (3, 4)
    grads = torch.autograd.grad(loss.sum(), list(head.parameters()))
    assert all(grad.any() for grad in grads)
    assert len(head.mlp.linears) == layers


def test_a_normal_head_is_trained_by_half_the_squared_error() -> None:
    predicted = UnitNormal(torch.tensor([1.0, -2.0]), is_vector=False)
    target = torch.tensor([3.0, -2.0])
    assert predicted.loss(target).tolist() == [2.0, 0.0]
    assert predicted.mean().tolist() == [1.0, -2.0]
    density = torch.distributions.Normal(predicted.mean(), 1.0).log_prob(target)
    torch.testing.assert_close(predicted.loss(target), -density - 0.5 * math.log(2 * math.pi))


def test_bins_in_symlog_space() -> None:
    bins = symlog_bins(5)
    assert bins.tolist() == [-20, -10, 0, 10, 20]
    logits = torch.tensor([[0.0, 1.0, 0.5, -1.0, 2.0]])
    probs = logits.double().softmax(-1)
    predicted = SymlogTwoHot(logits, bins)
    squashed = float((probs * bins.double()).sum())
    expected = math.copysign(math.expm1(abs(squashed)), squashed)
    assert float(predicted.mean()) == pytest.approx(expected, rel=1e-5)
    target = math.expm1(2.5)  # a quarter of the way from the bin at 0 to that at 10
    loss = -(0.75 * math.log(probs[0, 2]) + 0.25 * math.log(probs[0, 3]))
    assert float(predicted.loss(torch.tensor([target]))) == pytest.approx(loss, rel=1e-5)
    raw = -(math.log(probs[0, 3]))  # the target without its symlog lies beyond the bin at 10
    assert float(predicted.loss(torch.tensor([target]))) != pytest.approx(raw, rel=1e-2)


def test_the_first_prediction_of_both_two_hot_heads_is_zero() -> None:
    for kind in (TwoHotHead, SymlogTwoHotHead):
        assert not kind(feature_dim=FEATURE, layers=2, units=UNITS, norm="layer")(feature()).mean().any()


def test_a_fixed_continue_is_gamma_everywhere_and_learns_nothing() -> None:
    head = FixedContinue(discount_horizon=100)
    predicted = head(feature())
    torch.testing.assert_close(predicted.mean(), torch.full((3, 4), 0.99))
    assert not predicted.loss(torch.zeros(3, 4)).any()
    assert list(head.parameters()) == []
    with pytest.raises(ReverieError, match="discount_horizon"):
        FixedContinue(discount_horizon=1)


def test_a_network_with_layer_norms_written_out() -> None:
    mlp = Mlp(FEATURE, layers=2, units=UNITS, norm="layer", activation="elu")
    with torch.no_grad():
        for parameter in mlp.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    x = feature()
    for layer, norm in zip(mlp.linears, mlp.norms, strict=True):
        assert isinstance(layer, nn.Linear)
        assert layer.bias is None
        scale, shift = norm.get_parameter("norm.weight"), norm.get_parameter("norm.bias")
        x = x @ layer.weight.T
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + LAYER_NORM_EPSILON).sqrt()
        x = F.elu(x * scale + shift)
    torch.testing.assert_close(mlp(feature()), x)


def test_a_network_without_norms_keeps_its_biases() -> None:
    mlp = Mlp(FEATURE, layers=1, units=UNITS, norm="none", activation="relu")
    (layer,) = mlp.linears
    assert [name for name, _ in mlp.named_parameters()] == ["linears.0.weight", "linears.0.bias"]
    torch.testing.assert_close(mlp(feature()), F.relu(layer(feature())))


def test_norms_are_float32_under_bfloat16() -> None:
    mlp = Mlp(FEATURE, layers=1, units=UNITS, norm="layer", activation="silu")
    given = 300 * feature()
    with torch.autocast("cpu", torch.bfloat16):
        low = mlp(given)
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.float(), mlp(given), atol=0.05, rtol=0.05)


def test_rms_comes_with_silu_only() -> None:
    with pytest.raises(ReverieError, match="rms comes with the activation silu, not with elu"):
        Mlp(FEATURE, layers=1, units=UNITS, activation="elu")


@pytest.mark.parametrize(("fan", "divisor"), [("in", 100), ("average", 500)])
def test_initial_weights_have_the_variance_of_their_fan(fan: str, divisor: int) -> None:
    torch.manual_seed(0)
    weight = linear(100, 900, fan="in" if fan == "in" else "average").weight
    assert float(weight.detach().var()) == pytest.approx(1 / divisor, rel=0.03)
