"""Kernels of an encoder's first layer: they compute what torch's operations do, can be compiled, and are traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_halving import Layer, distance, made_up, outcome, plain_halving
from torch import Tensor
from torch.nn import functional as F
from triton_scripts import needs_triton, said

from reverie.components.networks import halved_convolution
from reverie.components.networks.halved_convolution import conv_halved_activated, corner_weights
from reverie.components.networks.images import ImageEncoder
from reverie.components.networks.layers import NORM_EPSILON
from reverie.components.representation_learners.rssm_by_hand import activated, norm_gradient, silu_gradient
from reverie.interop.dreamer_v3_norms import NormForm, formed
from reverie.runtime.convolutions import use_rewritten_convolutions
from reverie.types import Space

EXACT = (
    "small",
    "as large as in use",
    "nothing is a multiple of a tile",
    "grey",
    "four channels",
    "one pixel of the small map",
    "kernel of seven",
    "kernel of one",
    "corners that tie",
    "grey corners that tie",
    "in many pieces",
)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return said("halving_by_interpreter.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("name", EXACT)
def test_results_and_gradients_are_those_of_torch(found: dict[str, Any], name: str) -> None:
    assert list(found[name]) == ["value", "weight", "bias", "scale"]
    assert {key: value for key, value in found[name].items() if not value < 1e-5} == {}


@needs_triton
def test_narrow_types_are_rounded_at_the_same_places(found: dict[str, Any]) -> None:
    assert 1e-5 < max(found["in float16"].values()) < 0.005
    assert max(found["ties in float16"].values()) < 0.005


@needs_triton
def test_the_same_numbers_come_out_every_time_and_what_is_not_a_number_stays(found: dict[str, Any]) -> None:
    assert found["twice the same"]
    assert found["not a number"]["ours"] == found["not a number"]["torch's"]
    assert sum(found["not a number"]["ours"]) == 2


@needs_triton
def test_what_launches_return_lies_in_memory_as_tracing_was_told(found: dict[str, Any]) -> None:
    assert found["checked by torch"] == {"test_schema": "SUCCESS", "test_faketensor": "SUCCESS"}


@needs_triton
def test_planted_errors_are_noticed(found: dict[str, Any]) -> None:
    assert found["share of ties"] > 0.05
    assert found["beside corners in the opposite order"]["value"] < 1e-5
    assert found["beside corners in the opposite order"]["weight"] > 0.1
    assert min(found["beside transposed patches"].values()) > 0.1


@needs_triton
@pytest.mark.long
def test_they_can_be_compiled_for_a_hopper_gpu(tmp_path: Path) -> None:
    compiled = said("halving_compiled.py", TRITON_CACHE_DIR=str(tmp_path))
    assert len(compiled) == 3 * (8 + 5)
    # A program must fit: 227 KB of shared memory; and in bfloat16 its products are the matrix units'.
    assert max(one["shared_bytes"] for one in compiled.values()) <= 227 * 1024
    products = {name: one["matrix_products"] for name, one in compiled.items() if "largest" not in name}
    assert min(count for name, count in products.items() if "bfloat16" in name) > 0


class PlainLaunches:
    """In place of the launches: what the two operations promise, in torch's operations."""

    @staticmethod
    def halved(pictures: Tensor, weights: Tensor, bias: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        corners = torch.einsum("nhwdk,qdko->nhwqo", patches(pictures, weights), weights.to(pictures.dtype))
        largest, winner = (corners + bias.to(pictures.dtype)).max(-2)
        return activated(largest, scale), largest, winner.to(torch.int8)

    @staticmethod
    def halved_gradients(
        gradient: Tensor, pictures: Tensor, weights: Tensor, scale: Tensor, largest: Tensor, winner: Tensor
    ) -> tuple[Tensor, ...]:
        slope = silu_gradient(gradient, largest, scale)
        normed = F.rms_norm(largest.float(), scale.shape, None, NORM_EPSILON)
        to_largest = norm_gradient(slope, largest, scale).float()
        spread = to_largest.unsqueeze(-2) * F.one_hot(winner.long(), 4).transpose(-1, -2)
        to_weights = torch.einsum("nhwdk,nhwqo->qdko", patches(pictures, weights).float(), spread)
        return to_weights.contiguous(), to_largest.sum((0, 1, 2)), (slope * normed).sum((0, 1, 2))


def patches(pictures: Tensor, weights: Tensor) -> Tensor:
    """[N, H / 2, W / 2, D, D * C]."""
    reach = weights.shape[1]
    return pictures.unfold(1, reach, 2).unfold(2, reach, 2).permute(0, 1, 2, 4, 5, 3).flatten(4)


@pytest.fixture
def plain_launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import reverie.components.networks as networks

    monkeypatch.setitem(sys.modules, "reverie.components.networks.halved_launches", PlainLaunches)
    monkeypatch.setattr(networks, "halved_launches", PlainLaunches, raising=False)
    monkeypatch.setattr(halved_convolution, "can_be_fused", lambda x, weight: True)
    use_rewritten_convolutions(is_on=True)
    yield
    use_rewritten_convolutions(is_on=False)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_one_patch_holds_what_four_corners_read(plain_launches: None, kernel: int) -> None:
    parts = made_up(Layer(kernel=kernel, channels=2, outputs=3))
    plain, ours = outcome(plain_halving, parts), outcome(conv_halved_activated, parts)
    assert {name: d for name, value in plain.items() if not (d := distance(ours[name], value)) < 1e-5} == {}


def test_the_operation_keeps_what_it_promises_to_torch(plain_launches: None) -> None:
    """Shapes under tracing, gradients through its own registration, and nothing written to what it reads."""
    x, weight, bias, scale = made_up(Layer(outputs=3))
    bordered = F.pad(x, (0, 0, 2, 2, 2, 2))
    leaves = [one.detach().requires_grad_() for one in (corner_weights(weight), bias, scale)]
    torch.library.opcheck(halved_convolution._halved, (bordered, *leaves))
    activated, largest, winner = (one.detach() for one in halved_convolution._halved(bordered, *leaves))
    saved = bordered, leaves[0].detach(), scale.detach(), largest, winner
    torch.library.opcheck(halved_convolution._halved_gradients, (activated, *saved))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_compiler_takes_the_encoder_whole(plain_launches: None, precision: torch.dtype) -> None:
    torch.manual_seed(0)
    encoder = ImageEncoder(spaces={"image": Space(shape=(32, 48, 3), dtype="uint8")}, depth=4)
    rng = torch.Generator().manual_seed(0)
    pictures = {"image": torch.randint(256, (2, 3, 32, 48, 3), dtype=torch.uint8, generator=rng)}
    whole = torch.compile(encoder, backend="aot_eager", fullgraph=True, dynamic=False)
    both = []
    for form in (encoder, whole):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            tokens = form(pictures)
        assert tokens.dtype == precision
        both.append([tokens, *torch.autograd.grad(tokens.float().square().sum(), list(encoder.parameters()))])
    torch.compiler.reset()
    near = 1e-5 if precision == torch.float32 else 0.03  # the norm rounds otherwise while it is compiled
    assert max(distance(one.detach(), other.detach()) for one, other in zip(*both, strict=True)) < near


def test_only_the_first_layer_is_fused(plain_launches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[list[int]] = []
    right = halved_convolution.conv_halved_activated

    def counted(x: Tensor, *rest: Tensor) -> Tensor:
        shapes.append(list(x.shape))
        return right(x, *rest)

    monkeypatch.setattr(halved_convolution, "conv_halved_activated", counted)
    encoder = ImageEncoder(spaces={"image": Space(shape=(32, 48, 3), dtype="uint8")}, depth=4)
    pictures = {"image": torch.zeros(2, 32, 48, 3, dtype=torch.uint8)}
    encoder(pictures)
    with torch.no_grad():
        encoder(pictures)
    assert shapes == [[2, 32, 48, 3]]


def test_an_encoder_with_norms_of_another_form_is_left_as_it_is(plain_launches: None) -> None:
    encoder = ImageEncoder(spaces={"image": Space(shape=(32, 48, 3), dtype="uint8")}, depth=4)
    formed(encoder, NormForm(activation="tanh"))
    rng = torch.Generator().manual_seed(0)
    pictures = {"image": torch.randint(256, (2, 32, 48, 3), dtype=torch.uint8, generator=rng)}
    rewritten = encoder(pictures)
    with torch.no_grad():  # as it is written
        torch.testing.assert_close(rewritten.detach(), encoder(pictures), rtol=1e-4, atol=1e-5)


def test_layers_that_do_not_fit_are_left_to_the_other_form() -> None:
    fits = halved_convolution._fits
    for outputs, channels, kernel in ((32, 3, 5), (128, 3, 5), (256, 3, 5), (128, 4, 5), (64, 1, 7), (8, 3, 1)):
        assert fits(torch.empty(outputs, channels, kernel, kernel), torch.bfloat16)
    assert fits(torch.empty(128, 3, 5, 5), torch.float32)
    for outputs, channels, kernel in ((264, 1, 5), (256, 4, 5), (32, 3, 9), (32, 3, 4)):
        assert not fits(torch.empty(outputs, channels, kernel, kernel), torch.bfloat16)
    assert not fits(torch.empty(256, 3, 5, 5), torch.float32)
    assert not halved_convolution.can_be_fused(torch.empty(1, 8, 8, 3), torch.empty(32, 3, 5, 5))
