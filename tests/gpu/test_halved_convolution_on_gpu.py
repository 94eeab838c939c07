"""The first layer of an encoder in kernels of its own, beside torch's operations: values, gradients, capture."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parent.parent / "numerics"))

from plain_halving import Form, Layer, distance, made_up, outcome, plain_halving
from recording import replayed

from reverie.components.networks import halved_convolution
from reverie.components.networks.halved_convolution import conv_halved_activated
from reverie.components.networks.images import ImageEncoder
from reverie.runtime.convolutions import use_rewritten_convolutions
from reverie.types import Space

LAYERS = {
    "1m": Layer(pictures=48, height=64, width=64, outputs=8),
    "12m": Layer(pictures=48, height=64, width=64, outputs=32),
    "200m": Layer(pictures=16, height=64, width=64, outputs=128),
    "nothing is a multiple of a tile": Layer(pictures=7, height=26, width=38, channels=2, outputs=37),
    "grey": Layer(pictures=5, height=64, width=64, channels=1, outputs=24),
    "four channels": Layer(pictures=5, height=48, width=64, channels=4, outputs=48),
    "corners that tie": Layer(pictures=9, height=32, width=32, outputs=32, has_ties=True),
}
WIDE = {"widest": Layer(pictures=9, height=64, width=64, outputs=192)}


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def on_gpu(layer: Layer, form: Form, *, is_lowered: bool = False) -> dict[str, Tensor]:
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_lowered):
        return outcome(form, made_up(layer, "cuda"))


@pytest.mark.parametrize("name", LAYERS)
def test_float32_is_that_of_torch(name: str) -> None:
    plain, ours = (on_gpu(LAYERS[name], form) for form in (plain_halving, conv_halved_activated))
    assert {key: d for key, value in plain.items() if not (d := distance(ours[key], value)) < 1e-4} == {}


@pytest.mark.parametrize("name", LAYERS | WIDE)
def test_bfloat16_gives_the_same_direction(name: str) -> None:
    layer = (LAYERS | WIDE)[name]
    exact = on_gpu(layer, plain_halving)
    ours = on_gpu(layer, conv_halved_activated, is_lowered=True)
    assert ours["value"].dtype == torch.bfloat16
    for key, value in exact.items():
        assert torch.cosine_similarity(ours[key].flatten().double(), value.flatten().double(), dim=0) > 0.99, key


def test_where_all_corners_see_the_same_the_first_one_learns() -> None:
    """Matrix units add in another order for each corner; rounding must make equal what is equal."""
    x, weight, bias, scale = made_up(Layer(pictures=64, height=32, width=32, outputs=32), "cuda")
    x = x[:, :1, :1].to(torch.bfloat16).expand(-1, 36, 36, -1).contiguous()  # a colour for each picture
    with torch.no_grad():
        _, _, winner = halved_convolution._halved(x, halved_convolution.corner_weights(weight), bias, scale)
    assert winner.eq(0).float().mean() > 0.99


def test_the_same_numbers_come_out_every_time() -> None:
    one, other = (on_gpu(LAYERS["12m"], conv_halved_activated, is_lowered=True) for _ in range(2))
    assert all(torch.equal(one[name], value) for name, value in other.items())


@pytest.fixture
def rewritten() -> Iterator[None]:
    use_rewritten_convolutions(is_on=True)
    yield
    use_rewritten_convolutions(is_on=False)
    torch.compiler.reset()


def some_encoder() -> tuple[ImageEncoder, Tensor]:
    torch.manual_seed(0)
    encoder = ImageEncoder(spaces={"image": Space(shape=(64, 64, 3), dtype="uint8")}, depth=16).to("cuda")
    rng = torch.Generator("cuda").manual_seed(0)
    return encoder, torch.randint(256, (64, 64, 64, 3), dtype=torch.uint8, device="cuda", generator=rng)


def encoder_pass(form: Callable[..., Tensor], encoder: ImageEncoder, pictures: Tensor) -> list[Tensor]:
    with torch.autocast("cuda", dtype=torch.bfloat16):
        tokens = form({"image": pictures})
    loss = tokens.float().square().mean()
    return [tokens.detach(), *torch.autograd.grad(loss, list(encoder.parameters()))]


def test_the_encoder_uses_it_and_the_compiler_takes_it_whole(rewritten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, pictures = some_encoder()
    whole = torch.compile(encoder, fullgraph=True, dynamic=False)
    ours, compiled = (encoder_pass(form, encoder, pictures) for form in (encoder, whole))
    monkeypatch.setattr(halved_convolution, "can_be_fused", lambda x, weight: False)
    other_form = encoder_pass(encoder, encoder, pictures)
    assert not torch.equal(ours[1], other_form[1])
    for expected, *values in zip(other_form, ours, compiled, strict=True):
        for value in values:
            assert torch.cosine_similarity(value.flatten().double(), expected.flatten().double(), dim=0) > 0.99


def test_captured_launches_give_the_same_bits() -> None:
    parts = made_up(LAYERS["12m"], "cuda")

    def update() -> list[Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            value = conv_halved_activated(*parts)
        return [value.detach(), *torch.autograd.grad(value.float().square().sum(), parts[1:])]

    captured = replayed(update, after=parts[0].neg_)
    assert all(torch.equal(one, other) for one, other in zip(captured, update(), strict=True))
