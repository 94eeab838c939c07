"""A convolution whose weights' gradient is a kernel of its own, beside torch's: values, rounding, capture."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parent.parent / "numerics"))

from plain_same_conv import Form, Layer, distance, made_up, outcome, plain_same_conv
from recording import replayed

from reverie.components.networks import weight_gradient
from reverie.components.networks.images import ImageEncoder
from reverie.components.networks.weight_gradient import same_conv
from reverie.runtime.convolutions import use_rewritten_convolutions
from reverie.types import Space

LAYERS = {
    "12m, second": Layer(pictures=24, height=32, width=32, inputs=32, outputs=48),
    "12m, fourth": Layer(pictures=24, height=8, width=8, inputs=64, outputs=64),
    "100m, second": Layer(pictures=8, height=32, width=32, inputs=96, outputs=144),
    "200m, second": Layer(pictures=16, height=32, width=32, inputs=128, outputs=192),
    "200m, third": Layer(pictures=16, height=16, width=16, inputs=192, outputs=256),
    "nothing is a multiple of a tile": Layer(pictures=7, height=13, width=19, inputs=40, outputs=88),
    "one picture": Layer(pictures=1, height=8, width=24, inputs=16, outputs=16),
    "kernel of three": Layer(pictures=9, height=16, width=16, inputs=64, outputs=64, size=3),
    "kernel of seven": Layer(pictures=3, height=12, width=12, inputs=32, outputs=32, size=7),
}


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


def on_gpu(layer: Layer, form: Form, *, is_lowered: bool = False) -> dict[str, Tensor]:
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_lowered):
        return outcome(form, made_up(layer, "cuda"))


def exact(layer: Layer) -> dict[str, Tensor]:
    """In float64: torch's own float32 may take short cuts, such as transforms, that cost it digits."""
    x, weight, bias = (one.detach().double().requires_grad_() for one in made_up(layer, "cuda"))
    return outcome(plain_same_conv, (x, weight, bias))


@pytest.mark.parametrize("name", LAYERS)
def test_float32_is_that_of_torch(name: str) -> None:
    plain, ours = exact(LAYERS[name]), on_gpu(LAYERS[name], same_conv)
    assert {key: d for key, value in plain.items() if not (d := distance(ours[key], value)) < 1e-4} == {}


@pytest.mark.parametrize("name", LAYERS)
def test_bfloat16_gives_the_same_direction(name: str) -> None:
    ours = on_gpu(LAYERS[name], same_conv, is_lowered=True)
    assert ours["value"].dtype == torch.bfloat16
    for key, value in exact(LAYERS[name]).items():
        assert torch.cosine_similarity(ours[key].flatten().double(), value.flatten().double(), dim=0) > 0.999, key


@pytest.mark.parametrize("name", LAYERS)
def test_sums_of_narrow_products_are_exact(name: str) -> None:
    """Beside float64 on the same narrow numbers, nothing but the rounding of sums differs."""
    x, weight, bias = (one.detach().bfloat16().double() for one in made_up(LAYERS[name], "cuda"))
    weight.requires_grad_()
    value = plain_same_conv(x, weight, bias)
    slope = torch.randn(value.shape, generator=torch.Generator().manual_seed(2)).to("cuda").bfloat16()
    (wanted,) = torch.autograd.grad(value, weight, slope.double())
    ours = weight_gradient._weight_gradient(x.bfloat16(), slope, weight.shape[-1]).permute(3, 2, 0, 1)
    assert distance(ours, wanted) < 1e-4


def test_the_same_numbers_come_out_every_time() -> None:
    one, other = (on_gpu(LAYERS["200m, second"], same_conv, is_lowered=True) for _ in range(2))
    assert torch.equal(one["weight"], other["weight"])


@pytest.fixture
def _rewritten() -> Iterator[None]:
    use_rewritten_convolutions(is_on=True)
    yield
    use_rewritten_convolutions(is_on=False)


@pytest.mark.usefixtures("_rewritten")
def test_a_compiled_encoder_can_be_captured() -> None:
    torch.manual_seed(0)
    encoder = ImageEncoder(spaces={"image": Space(shape=(64, 64, 3), dtype="uint8")}, depth=16).cuda()
    whole = torch.compile(encoder, fullgraph=True, dynamic=False)
    pictures = torch.randint(256, (8, 64, 64, 3), dtype=torch.uint8, device="cuda")
    wanted = torch.randn(8, encoder.output_dim, device="cuda")

    def update() -> list[Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            total = (whole({"image": pictures}).float() * wanted).sum()
        return [total.detach(), *torch.autograd.grad(total, list(encoder.parameters()))]

    captured = replayed(update, after=lambda: pictures.copy_(pictures.flip(1)))
    names = ["loss", *(name for name, _ in encoder.named_parameters())]
    for name, one, other in zip(names, captured, update(), strict=True):
        # Other convolutions are not made to be deterministic here.
        assert distance(one, other) < 1e-3, name


@pytest.mark.usefixtures("_rewritten")
def test_an_encoder_uses_it_behind_its_first_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[list[int]] = []
    right = weight_gradient.same_conv

    def counted(x: Tensor, *rest: Tensor) -> Tensor:
        shapes.append(list(x.shape))
        return right(x, *rest)

    monkeypatch.setattr(weight_gradient, "same_conv", counted)
    encoder = ImageEncoder(spaces={"image": Space(shape=(64, 64, 3), dtype="uint8")}, depth=16).cuda()
    pictures = {"image": torch.zeros(2, 64, 64, 3, dtype=torch.uint8, device="cuda")}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        encoder(pictures)
    assert shapes == [[2, 32, 32, 32], [2, 16, 16, 48], [2, 8, 8, 64]]
