"""Strided convolutions for pictures: sizes and parameters as published, numbers as their definition says."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks.distributions import ImageMse, UnitNormal
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.networks.strided_images import StridedImageDecoder, StridedImageEncoder
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.types import ReverieError, Space

COLOUR = {"image": Space(shape=(64, 64, 3), dtype="uint8")}
V1 = {"is_padded": False, "norm": "none", "activation": "relu"}
V2023 = {"is_padded": True, "norm": "layer", "activation": "silu"}


def encoder(spaces: dict[str, Space] = COLOUR, depth: int = 2, **form: object) -> StridedImageEncoder:
    return partial(StridedImageEncoder, **form)(spaces=spaces, depth=depth)


def decoder(spaces: dict[str, Space] = COLOUR, depth: int = 2, **form: object) -> StridedImageDecoder:
    return partial(StridedImageDecoder, **form)(spaces=spaces, deter_dim=5, stoch_dim=3, depth=depth)


def pictures(*shape: int) -> Tensor:
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


def parameter_count(*modules: nn.Module) -> int:
    return sum(parameter.numel() for module in modules for parameter in module.parameters())


def test_encoder_and_decoder_of_dreamer_v1_have_the_parameters_of_the_world_models_autoencoder() -> None:
    """Both papers use the same stack; that autoencoder of 4,348,547 parameters has two layers to 32 numbers more."""
    read = encoder(depth=32, **V1)
    drawn = partial(StridedImageDecoder, **V1)(spaces=COLOUR, deter_dim=16, stoch_dim=16, depth=32)
    assert read.output_dim == 1024
    assert parameter_count(read, drawn) + 2 * (1024 * 32 + 32) == 4_348_547


def test_the_encoder_without_padding_written_out() -> None:
    made, seen = encoder(**V1), pictures(2, 3, 64, 64, 3)
    x = seen.flatten(0, 1).permute(0, 3, 1, 2).float() / 255 - 0.5
    sides = []
    for layer in made.convolutions:
        assert isinstance(layer, nn.Conv2d)
        x = F.relu(F.conv2d(x, layer.weight, layer.bias, stride=2))
        sides.append(x.shape[-1])
    assert sides == [31, 14, 6, 2]
    assert [layer.weight.shape[0] for layer in made.convolutions] == [2, 4, 8, 16]
    tokens = made({"image": seen})
    assert tokens.shape == (2, 3, made.output_dim) == (2, 3, 2 * 2 * 16)
    torch.testing.assert_close(tokens, x.permute(0, 2, 3, 1).reshape(2, 3, -1))


def test_the_encoder_of_2023_written_out() -> None:
    made, seen = encoder(**V2023), pictures(2, 64, 64, 3)
    x = seen.permute(0, 3, 1, 2).float() / 255 - 0.5
    for layer in made.convolutions:
        assert isinstance(layer, nn.Conv2d)
        assert layer.bias is None
        # "Same" padding of an even side with kernel 4 and stride 2 is one on each side.
        x = F.conv2d(F.pad(x, (1, 1, 1, 1)), layer.weight, stride=2)
        x = F.silu(F.layer_norm(x.permute(0, 2, 3, 1), (x.shape[1],), eps=1e-3)).permute(0, 3, 1, 2)
    assert x.shape == (2, 16, 4, 4)
    torch.testing.assert_close(made({"image": seen}), x.permute(0, 2, 3, 1).reshape(2, -1))


@pytest.mark.parametrize(("form", "sides"), [(V1, [5, 13, 30, 64]), (V2023, [8, 16, 32, 64])])
def test_the_decoder_grows_to_the_picture(form: dict[str, object], sides: list[int]) -> None:
    made, found = decoder(**form), []
    for layer in (*made.convolutions, made.output):
        layer.register_forward_hook(lambda _module, _given, output: found.append(output.shape[-1]))
    made(torch.randn(2, 5), torch.randn(2, 3))
    assert found == sides
    assert [layer.weight.shape[1] for layer in (*made.convolutions, made.output)] == [8, 4, 2, 3]


@pytest.mark.parametrize(("form", "weight"), [(V1, 0.5), (V2023, 1.0)])
def test_the_loss_is_the_weighted_squared_error_around_one_half(form: dict[str, object], weight: float) -> None:
    made = decoder(**form, error_weight=weight)
    shapes: list[Tensor] = []
    made.output.register_forward_hook(lambda _module, _given, output: shapes.append(output))
    deter, stoch = torch.randn(2, 3, 5), torch.randn(2, 3, 3)
    decoded = made(deter, stoch)["image"]
    assert isinstance(decoded, ImageMse)
    raw = shapes[0].permute(0, 2, 3, 1).view(2, 3, 64, 64, 3)
    torch.testing.assert_close(decoded.mean(), raw + 0.5)
    seen = pictures(2, 3, 64, 64, 3)
    centred = seen.double() / 255 - 0.5
    expected = weight * (raw.double() - centred).square().sum((-3, -2, -1))
    torch.testing.assert_close(decoded.loss(seen).double(), expected, rtol=1e-5, atol=0)
    if weight == 0.5:  # minus the log-density of a normal with deviation 1, without its constant
        density = torch.distributions.Normal(raw.double(), 1.0).log_prob(centred).sum((-3, -2, -1))
        constant = 64 * 64 * 3 * 0.5 * torch.log(torch.tensor(2 * torch.pi)).double()
        torch.testing.assert_close(decoded.loss(seen).double(), -density - constant, rtol=1e-4, atol=0)


def test_padded_stacks_take_other_sizes_and_several_pictures() -> None:
    spaces = {"b": Space(shape=(32, 48, 1), dtype="uint8"), "a": Space(shape=(32, 48, 3), dtype="uint8")}
    seen = {"b": pictures(2, 32, 48, 1), "a": pictures(2, 32, 48, 3)}
    made = encoder(spaces, **V2023)
    assert made(seen).shape == (2, made.output_dim) == (2, 2 * 3 * 16)
    decoded = decoder(spaces, **V2023)(torch.randn(2, 5), torch.randn(2, 3))
    assert {key: tuple(one.mean().shape) for key, one in decoded.items()} == {"a": (2, 32, 48, 3), "b": (2, 32, 48, 1)}


@pytest.mark.parametrize("make", [encoder, decoder])
def test_stacks_without_padding_refuse_other_sizes(make: object) -> None:
    assert callable(make)
    with pytest.raises(ReverieError, match="made for pictures of 64x64, got 96x96"):
        make({"image": Space(shape=(96, 96, 3), dtype="uint8")}, **V1)


def test_vectors_past_symlog_beside_pictures() -> None:
    spaces = {**COLOUR, "vector": Space(shape=(3,), dtype="float32"), "single": Space(shape=(), dtype="float32")}
    plain = {"layers": 1, "units": 6, "norm": "none", "activation": "elu", "has_symlog": False}
    read = ObservationEncoder(
        spaces=spaces, vectors=partial(VectorEncoder, **plain), images=partial(StridedImageEncoder, depth=2, **V1)
    )
    seen = {"vector": 50 * torch.randn(2, 3), "single": torch.tensor([7.0, -90.0]), "image": pictures(2, 64, 64, 3)}
    tokens = read(seen)
    assert tokens.shape == (2, read.dims()["token_dim"]) == (2, 6 + 64)
    assert isinstance(read.vectors, VectorEncoder)
    (layer,) = read.vectors.mlp.linears
    raw = torch.cat([seen["single"].unsqueeze(-1), seen["vector"]], -1)
    torch.testing.assert_close(tokens[:, :6], F.elu(layer(raw)))
    drawn = ObservationDecoder(
        spaces=spaces,
        deter_dim=5,
        stoch_dim=3,
        vectors=partial(VectorDecoder, **plain),
        images=partial(StridedImageDecoder, depth=2, **V1),
    )(torch.randn(2, 5), torch.randn(2, 3))
    for key in ("vector", "single"):
        one = drawn[key]
        assert isinstance(one, UnitNormal)
        error = one.mean() - seen[key].view_as(one.mean())
        torch.testing.assert_close(one.loss(seen[key]), 0.5 * error.square().sum(-1))
