"""The kernel of weights' gradients computes what torch computes, can be compiled for its GPU, and is traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from plain_same_conv import Layer, distance, made_up, outcome, plain_same_conv
from torch import Tensor
from triton_scripts import needs_triton, said

from reverie.components.networks import weight_gradient
from reverie.components.networks.images import ImageEncoder
from reverie.components.networks.weight_gradient import same_conv
from reverie.runtime.convolutions import use_rewritten_convolutions
from reverie.types import Space

EXACT = (
    "small",
    "nothing is a multiple of a tile",
    "one picture",
    "kernel of three",
    "kernel of seven",
    "maps smaller than the kernel",
    "one pixel",
    "in many pieces",
)
NARROW = ("in float16", "128 and 64 columns in float16", "several tiles of columns in float16")


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return said("weight_gradient_by_interpreter.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("name", EXACT)
def test_results_and_gradients_are_those_of_torch(found: dict[str, Any], name: str) -> None:
    assert list(found[name]) == ["value", "picture", "weight", "bias"]
    assert {key: value for key, value in found[name].items() if not value < 1e-5} == {}


@needs_triton
@pytest.mark.parametrize("name", NARROW)
def test_sums_of_narrow_types_are_wide(found: dict[str, Any], name: str) -> None:
    # Torch rounds these gradients to float16 in the end, which is the distance.
    assert max(found[name].values()) < 0.001


@needs_triton
def test_pixels_are_split_and_the_same_numbers_come_out_every_time(found: dict[str, Any]) -> None:
    assert found["splits"] == 6
    assert found["twice the same"]


@needs_triton
def test_what_the_launch_returns_lies_in_memory_as_tracing_was_told(found: dict[str, Any]) -> None:
    assert found["checked by torch"] == {"test_schema": "SUCCESS", "test_faketensor": "SUCCESS"}


@needs_triton
@pytest.mark.parametrize("error", ["beside pictures moved by a row", "beside pictures without a border"])
def test_planted_errors_are_noticed(found: dict[str, Any], error: str) -> None:
    assert found[error].pop("weight") > 0.1
    assert max(found[error].values()) < 1e-5


@needs_triton
@pytest.mark.long
def test_it_can_be_compiled_for_a_hopper_gpu(tmp_path: Path) -> None:
    compiled = said("weight_gradient_compiled.py", TRITON_CACHE_DIR=str(tmp_path))
    assert len(compiled) == 2 * 5 * 3
    # A program must fit: 227 KB of shared memory, and registers for all its sums.
    assert max(one["shared_bytes"] for one in compiled.values()) <= 227 * 1024
    assert max(one["spilled_bytes"] for one in compiled.values()) == 0
    narrow = [one for name, one in compiled.items() if "bfloat16" in name]
    assert min(one["matrix_products"] for one in narrow) > 0
    assert not any(one["is_serial"] for one in narrow)
    assert min(one["copies_of_16_bytes"] for one in narrow) > 0


class PlainLaunch:
    """In place of the launch: what the operation promises, in torch's operations."""

    @staticmethod
    def weight_gradient(pictures: Tensor, gradient: Tensor, size: int) -> Tensor:
        channels = gradient.shape[-1], pictures.shape[-1]
        y, x = (one.permute(0, 3, 1, 2).float() for one in (gradient, pictures))
        found = torch.nn.grad.conv2d_weight(x, (*channels, size, size), y, padding=size // 2)
        return found.permute(2, 3, 1, 0).contiguous()


@pytest.fixture
def plain_launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    import reverie.components.networks as networks

    monkeypatch.setitem(sys.modules, "reverie.components.networks.weight_gradient_launch", PlainLaunch)
    monkeypatch.setattr(networks, "weight_gradient_launch", PlainLaunch, raising=False)
    monkeypatch.setattr(weight_gradient, "pays_off", lambda x, weight: min(weight.shape[1:]) >= 5)
    use_rewritten_convolutions(is_on=True)
    yield
    use_rewritten_convolutions(is_on=False)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_gradients_arrive_where_they_belong(plain_launch: None, size: int) -> None:
    parts = made_up(Layer(size=size))
    plain, ours = outcome(plain_same_conv, parts), outcome(same_conv, parts)
    assert {name: d for name, value in plain.items() if not (d := distance(ours[name], value)) < 1e-5} == {}


@pytest.mark.parametrize("wanted", [0, 1, 2])
def test_only_what_is_asked_for_is_computed(plain_launch: None, wanted: int) -> None:
    parts = [one.detach().requires_grad_(place == wanted) for place, one in enumerate(made_up(Layer()))]
    plain, ours = (torch.autograd.grad(form(*parts).sum(), parts[wanted])[0] for form in (plain_same_conv, same_conv))
    assert distance(ours, plain) < 1e-5


def test_weights_learn_in_float32_beside_narrow_products(plain_launch: None) -> None:
    parts = made_up(Layer())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours = outcome(same_conv, parts)
    assert [one.dtype for one in ours.values()] == [torch.bfloat16, *3 * [torch.float32]]
    rounded = ours["weight"].to(torch.bfloat16).float()
    assert not torch.equal(ours["weight"], rounded)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_the_compiler_takes_the_encoder_whole(
    plain_launch: None, precision: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    encoder = ImageEncoder(spaces={"image": Space(shape=(32, 48, 3), dtype="uint8")}, depth=4)
    rng = torch.Generator().manual_seed(0)
    pictures = {"image": torch.randint(256, (2, 3, 32, 48, 3), dtype=torch.uint8, generator=rng)}
    whole = torch.compile(encoder, backend="aot_eager", fullgraph=True, dynamic=False)
    both, launches = [], []
    right = PlainLaunch.weight_gradient
    monkeypatch.setattr(PlainLaunch, "weight_gradient", lambda *given: launches.append(0) or right(*given))
    for form in (encoder, whole):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == torch.bfloat16):
            tokens = form(pictures)
        both.append([tokens, *torch.autograd.grad(tokens.float().square().sum(), list(encoder.parameters()))])
    torch.compiler.reset()
    assert len(launches) == 2 * 3
    near = 1e-5 if precision == torch.float32 else 0.03  # the norm rounds otherwise while it is compiled
    assert max(distance(one.detach(), other.detach()) for one, other in zip(*both, strict=True)) < near


def test_layers_that_would_gain_nothing_are_left_to_cudnn() -> None:
    suits = weight_gradient._suits
    for outputs, inputs, size in ((48, 32, 5), (192, 128, 5), (256, 256, 7), (24, 16, 5)):
        assert suits(torch.empty(outputs, inputs, size, size), torch.bfloat16)
    for outputs, inputs, size in ((32, 3, 5), (32, 8, 5), (12, 128, 5), (768, 256, 3), (64, 36, 5), (64, 64, 6)):
        assert not suits(torch.empty(outputs, inputs, size, size), torch.bfloat16)
    assert not suits(torch.empty(192, 128, 5, 5), torch.float32)
    assert not weight_gradient.pays_off(torch.empty(1, 8, 8, 32), torch.empty(48, 32, 5, 5))


@needs_triton
def test_the_last_round_of_programs_is_nearly_full() -> None:
    from reverie.components.networks.weight_gradient_launch import chosen_splits

    assert [chosen_splits(tiles, 4096) for tiles in (4, 7, 13, 38, 50, 132, 600)] == [33, 37, 10, 10, 5, 1, 1]
    assert chosen_splits(4, 1) == 1
    assert chosen_splits(4, 40) == 5
