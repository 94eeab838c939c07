"""Layers, norms, squashing and initial weights against the published code."""

from __future__ import annotations

import math

import pytest
import torch
from reference import FORWARD, GRADIENT, arrays, assert_near, assert_rows_near
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.images import channels_behind, channels_in_front, conv
from reverie.components.networks.layers import BlockLinear, Mlp, NormSilu, linear
from reverie.components.networks.symlog import symexp, symlog
from reverie.interop.links import convolution, load
from reverie.types import ReverieError

BLOCKS = arrays("blocks")


def test_symlog_and_symexp() -> None:
    assert_near(symlog(BLOCKS["symlog/x"]), BLOCKS["symlog/symlog"])
    torch.testing.assert_close(symexp(BLOCKS["symexp/x"]), BLOCKS["symexp/symexp"], rtol=1e-6, atol=0)
    torch.testing.assert_close(symexp(symlog(BLOCKS["symlog/x"].double())), BLOCKS["symlog/x"].double())


def norm_silu() -> NormSilu:
    layer = NormSilu(12)
    layer.scale.data.copy_(BLOCKS["rmsnorm/scale"])
    return layer


def test_norm_silu_is_the_norm_followed_by_silu_with_and_without_gradients() -> None:
    expected = F.silu(BLOCKS["rmsnorm/y"])
    assert_near(F.silu(BLOCKS["silu/x"]), BLOCKS["silu/y"])
    assert_rows_near(norm_silu()(BLOCKS["rmsnorm/x"]), expected, FORWARD)
    with torch.no_grad():
        assert_rows_near(norm_silu()(BLOCKS["rmsnorm/x"]), expected, FORWARD)


def test_norm_silu_gradients() -> None:
    layer, x = norm_silu(), BLOCKS["rmsnorm/x"].clone().requires_grad_()
    normed = BLOCKS["rmsnorm/y"].double()
    sigmoid = normed.sigmoid()
    slope = sigmoid * (1 + normed * (1 - sigmoid))
    # Divided by the slope of SiLU, so that what reaches the norm is the cotangent of the fixture.
    cotangent = (BLOCKS["rmsnorm/cotangent"].double() / slope).float()
    grad_x, grad_scale = torch.autograd.grad((layer(x) * cotangent).sum(), (x, layer.scale))
    assert_rows_near(grad_x, BLOCKS["rmsnorm/grad_x"], GRADIENT)
    assert_near(grad_scale, BLOCKS["rmsnorm/grad_scale"], GRADIENT)


def test_norm_silu_gradients_agree_with_autograd_of_the_formula_at_any_rank() -> None:
    rng = torch.Generator().manual_seed(0)
    layer = NormSilu(6)
    layer.scale.data.copy_(torch.randn(6, generator=rng))
    for shape in [(3, 6), (2, 4, 6)]:
        x = torch.randn(shape, generator=rng).requires_grad_()
        cotangent = torch.randn(shape, generator=rng)
        formula = F.silu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-4) * layer.scale)
        ours = torch.autograd.grad((layer(x) * cotangent).sum(), (x, layer.scale))
        expected = torch.autograd.grad((formula * cotangent).sum(), (x, layer.scale))
        for one, other in zip(ours, expected, strict=True):
            assert_near(one, other, GRADIENT, what=str(shape))


def test_linear() -> None:
    layer = linear(10, 6)
    layer.weight.data.copy_(BLOCKS["linear/kernel"].T)
    layer.bias.data.copy_(BLOCKS["linear/bias"])
    assert_near(layer(BLOCKS["linear/x"]), BLOCKS["linear/y"])


def test_block_linear_splits_inputs_and_outputs_into_contiguous_groups() -> None:
    layer = BlockLinear(20, 12, blocks=4)
    layer.weight.data.copy_(BLOCKS["blocklinear/kernel"])
    layer.bias.data.copy_(BLOCKS["blocklinear/bias"])
    output = layer(BLOCKS["blocklinear/x"].reshape(6, 4, 5))
    assert_near(output.reshape(3, 2, 12), BLOCKS["blocklinear/y"])


def test_block_linear_refuses_sizes_that_do_not_divide() -> None:
    with pytest.raises(ReverieError, match="4 blocks"):
        BlockLinear(20, 10, blocks=4)


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("linear_300x400", linear(300, 400)),
        ("block_8x96x64", BlockLinear(768, 512, blocks=8)),
        ("conv_5x5x24x64", conv(24, 64, 5)),
    ],
)
def test_initial_weights_have_the_published_spread(name: str, layer: nn.Linear | BlockLinear | nn.Conv2d) -> None:
    """For a block layer the fan-in is the total input size."""
    weight = layer.weight.detach()
    assert sorted(weight.shape) == sorted(BLOCKS[f"init/{name}/shape"].tolist())
    assert float(weight.std()) == pytest.approx(float(BLOCKS[f"init/{name}/expected_std"]), rel=0.01)
    assert float(weight.abs().max()) <= float(BLOCKS[f"init/{name}/bound"]) * (1 + 1e-6)
    assert float(weight.abs().max()) > 0.95 * float(BLOCKS[f"init/{name}/bound"])
    assert layer.bias is not None
    assert not layer.bias.any()


def test_convolution_pads_to_the_same_size_and_its_norm_is_over_channels() -> None:
    layer = conv(3, 4, 5)
    load(
        convolution("conv", layer),
        {f"conv/{name}": BLOCKS[f"conv/{name}"].numpy() for name in ("kernel", "bias")},
    )
    assert_near(channels_behind(layer(channels_in_front(BLOCKS["conv/x"]))), BLOCKS["conv/y"])
    norm = NormSilu(6)
    with torch.no_grad():
        norm.scale.copy_(BLOCKS["rmsnorm_conv/scale"])
    assert_near(norm(BLOCKS["rmsnorm_conv/x"]), F.silu(BLOCKS["rmsnorm_conv/y"]))


def test_outscale_multiplies_the_initial_weights() -> None:
    assert not linear(30, 40, outscale=0.0).weight.any()
    small = linear(300, 400, outscale=0.01).weight.detach()
    assert float(small.std()) == pytest.approx(0.01 * 1.1368 * 0.87962566 / math.sqrt(300), rel=0.01)


def test_mlp_is_linear_norm_silu_repeated() -> None:
    mlp = Mlp(5, layers=2, units=7)
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(1))
    expected: Tensor = x
    for index in range(2):
        layer = mlp.linears[index]
        assert isinstance(layer, nn.Linear)
        expected = expected @ layer.weight.T + layer.bias
        expected = F.silu(expected * torch.rsqrt(expected.square().mean(-1, keepdim=True) + 1e-4))
    assert_near(mlp(x), expected.detach())
    assert mlp.output_dim == 7
