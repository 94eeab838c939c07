"""DreamerV3's walk in kernels of its own, beside the plain one: values, gradients, rounding, capture."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from recording import replayed
from torch import Tensor

from reverie.components.representation_learners.latents import CategoricalLatents, Latent
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.representation_learners.rssm_by_hand import PlainSteps
from reverie.components.representation_learners.rssm_fused import FusedSteps
from reverie.components.representation_learners.rssm_tape import Inputs, Steps, Tape, Weights

DEVICE = torch.device("cuda")
SIZES = {"1m": (512, 64, 4), "12m": (2048, 256, 16), "50m": (4096, 512, 32)}
BATCH, LENGTH, TOKENS, ACTIONS = 16, 12, 40, 6


@pytest.fixture(autouse=True)
def _exact_products() -> None:
    torch.backends.cuda.matmul.allow_tf32 = False


@functools.cache
def model(size: str) -> Rssm:
    torch.manual_seed(0)
    deter, hidden, classes = SIZES[size]
    latents = CategoricalLatents(stoch=32, classes=classes)
    return Rssm(token_dim=TOKENS, action_dim=ACTIONS, deter=deter, hidden=hidden, latents=latents).to(DEVICE)


def inputs(size: str, batch: int = BATCH, length: int = LENGTH) -> tuple[Latent, Tensor, Tensor, Tensor]:
    rng = torch.Generator(DEVICE).manual_seed(1)
    deter, _, classes = SIZES[size]

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, device=DEVICE, generator=rng).requires_grad_()

    carry = Latent(deter=drawn(batch, deter), stoch=drawn(batch, 32, classes).softmax(-1))
    is_first = torch.rand(batch, length, device=DEVICE, generator=rng) < 0.1
    return carry, drawn(batch, length, TOKENS), drawn(batch, length, ACTIONS), is_first


def outcome(
    size: str,
    steps: Steps | None,
    *,
    is_lowered: bool = False,
    batch: int = BATCH,
    length: int = LENGTH,
    has_noise: bool = True,
) -> dict[str, Tensor]:
    """By ``steps``, or by the plain walk that autograd follows."""
    rssm, (carry, tokens, action, is_first) = model(size), inputs(size, batch, length)
    noise = torch.Generator(DEVICE).manual_seed(2) if has_noise else None
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_lowered):
        way = rssm.observe if steps is None else functools.partial(rssm.walk, steps=steps)
        latent, posterior = way(carry, tokens, action, is_first, noise)
    rng = torch.Generator(DEVICE).manual_seed(3)
    found = {"deter": latent.deter, "stoch": latent.stoch, "posterior": posterior.float()}
    weighed = [
        (value * torch.randn(value.shape, device=DEVICE, generator=rng)).sum() / value.shape[-1] ** 0.5
        for value in found.values()
    ]
    leaves = {"carry": carry.deter, "tokens": tokens, "action": action}
    leaves |= {name: value for name, value in rssm.named_parameters() if not name.startswith("prior")}
    gradients = torch.autograd.grad(torch.stack(weighed).sum(), list(leaves.values()))
    found |= {"losses": torch.stack(weighed)}
    return {name: value.detach() for name, value in found.items()} | dict(zip(leaves, gradients, strict=True))


def distance(one: Tensor, other: Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm().clamp(min=1e-12))


@pytest.mark.parametrize("steps", [PlainSteps(), FusedSteps()], ids=["by hand", "fused"])
@pytest.mark.parametrize("size", SIZES)
def test_float32_is_that_of_the_plain_walk(size: str, steps: Steps) -> None:
    plain, ours = outcome(size, None), outcome(size, steps)
    # A point within rounding of a border between classes falls on its other side; the same seeds meet none.
    assert torch.equal(plain["stoch"], ours["stoch"])
    assert {name: d for name, value in plain.items() if not (d := distance(ours[name], value)) < 1e-4} == {}


@pytest.mark.parametrize("batch", [1, 5, 17, 40])
def test_any_number_of_sequences_and_the_most_likely_classes(batch: int) -> None:
    for has_noise in (True, False):
        plain, ours = (outcome("1m", s, batch=batch, has_noise=has_noise) for s in (None, FusedSteps()))
        assert {name: d for name, value in plain.items() if not (d := distance(ours[name], value)) < 1e-4} == {}


class SameSamples(PlainSteps):
    """The way there in kernels and the way back in torch's operations, so that both ways back know the same samples."""

    def forward(self, inputs: Inputs, weights: Weights, latents: CategoricalLatents) -> Tape:
        return FusedSteps().forward(inputs, weights, latents)


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_gives_the_same_direction_under_the_same_samples(size: str) -> None:
    by_hand, fused = (outcome(size, steps, is_lowered=True) for steps in (SameSamples(), FusedSteps()))
    assert torch.equal(by_hand["stoch"], fused["stoch"])
    for name, value in by_hand.items():
        assert torch.cosine_similarity(fused[name].flatten().double(), value.flatten().double(), dim=0) > 0.99, name


@pytest.mark.parametrize("size", SIZES)
def test_bfloat16_moves_few_samples(size: str) -> None:
    """Points that fall near a border change sides; what is computed from then on differs."""
    plain, fused = (outcome(size, steps, is_lowered=True, length=1) for steps in (None, FusedSteps()))
    assert plain["stoch"].eq(fused["stoch"]).all(-1).float().mean() > 0.98
    assert distance(fused["deter"], plain["deter"]) < 0.01
    assert distance(fused["posterior"], plain["posterior"]) < 0.02


CUTS = {
    "pieces": FusedSteps(terms=512),
    "overlapping": FusedSteps(has_overlap=True),
    "one after the other": FusedSteps(has_overlap=False),
    "for little shared memory": FusedSteps(stages=2),
}


@pytest.mark.parametrize("steps", CUTS.values(), ids=CUTS.keys())
def test_the_same_numbers_come_out_every_time(steps: FusedSteps) -> None:
    one, other = (outcome("12m", steps, is_lowered=True) for _ in range(2))
    assert all(torch.equal(one[name], value) for name, value in other.items())


def test_launches_that_overlap_give_the_same_bits() -> None:
    one, other = (outcome("12m", CUTS[name], is_lowered=True) for name in ("one after the other", "overlapping"))
    assert all(torch.equal(one[name], value) for name, value in other.items())


OTHERS = [{"terms": 128}, {"columns": 16}, {"columns": 64}, {"warps": 8}, {"stages": 2}, {"has_overlap": False}]


@pytest.mark.parametrize("cut", OTHERS)
def test_float32_is_that_of_the_plain_walk_however_it_is_cut(cut: dict[str, Any]) -> None:
    plain, ours = outcome("1m", None), outcome("1m", FusedSteps(**cut))
    assert {name: d for name, value in plain.items() if not (d := distance(ours[name], value)) < 1e-4} == {}


@pytest.mark.parametrize("steps", CUTS.values(), ids=CUTS.keys())
def test_captured_launches_give_the_same_bits(steps: FusedSteps) -> None:
    rssm, (carry, tokens, action, is_first) = model("12m"), inputs("12m")
    parameters = [value for name, value in rssm.named_parameters() if not name.startswith("prior")]

    def update() -> list[Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            latent, posterior = rssm.walk(carry, tokens, action, is_first, None, steps=steps)
        total = latent.deter.square().sum() + (latent.stoch * 0.1).sum() + posterior.float().square().sum()
        return [total.detach(), *torch.autograd.grad(total, [tokens, action, *parameters])]

    def change() -> None:
        with torch.no_grad():
            tokens.mul_(0.9)

    captured = replayed(update, after=change)
    assert all(torch.equal(one, other) for one, other in zip(captured, update(), strict=True))
