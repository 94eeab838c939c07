"""The whole fast update beside the plain one: compiled steps, our own kernels and rewritten convolutions together."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from same_samples import classes_of, cosine, distance, flat, given_classes, learned, seasoned
from torch import Tensor

from reverie.benchmark import SPACES
from reverie.commands.composition import composed
from reverie.components.networks.distributions import TwoHot, symexp_bins
from reverie.rehearsal import Rehearsal, rehearsal
from reverie.workflows.dreamer_records import Learned

DEVICE = torch.device("cuda")
PLAIN = ("runtime.compiles_steps=false", "runtime.rewrites_convolutions=false", "runtime.walk=autograd")
SIZES = ("1m", "12m", "50m", "200m")
OTHER_SIZES = ("25m", "100m", "400m")
KINDS = ("mixed", "vector", "image")
"""Of these the vectors have actions of numbers, the others classes."""
AT_ONCE = [*((size, "mixed") for size in SIZES), ("12m", "vector")]
LATER = [(size, kind) for size in (*SIZES, *OTHER_SIZES) for kind in KINDS if (size, kind) not in AT_ONCE]
CASES = [*AT_ONCE, *(pytest.param(*case, marks=pytest.mark.long) for case in LATER)]
ALLOWED = 1e-4
ALLOWED_OF_POOLS = 1e-3
"""Where corners of a patch differ by rounding only, pooling gives the whole gradient to one or the other: two such
patches among two million put a picture encoder's gradients in float32 1.4e-3 away from those in float64."""


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    """Float32 means float32 for both: no products of shorter numbers."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    gc.collect()
    torch.cuda.empty_cache()


def made(size: str, kind: str, precision: str, *settings: str) -> Rehearsal:
    """The same weights and the same rows, whatever the settings."""
    common = ["experiment=dreamer_atari100k", f"size={size}", "runtime=gpu", f"runtime.precision={precision}"]
    config = composed("gym_CartPole-v1", [*common, *settings])
    return rehearsal(config, spaces=SPACES[kind], device=DEVICE, streams=16, rows=16 * 128)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    losses: dict[str, Tensor]
    gradients: dict[str, list[Tensor]]
    drawn: list[Tensor]


def outcome(found: Learned, gradients: dict[str, list[Tensor]]) -> Outcome:
    """Without the graphs, which would fill the memory."""
    losses = {name: loss.detach() for name, loss in found.losses.items()}
    return Outcome(losses=losses, gradients=gradients, drawn=classes_of(found))


def both(size: str, kind: str, precision: str) -> tuple[Outcome, Outcome]:
    """The fast update and, under its samples, the plain one."""
    run = seasoned(made(size, kind, precision))
    fast = outcome(*learned(run, run.update.drawn()))
    del run
    run = seasoned(made(size, kind, precision, *PLAIN))
    batch = run.update.drawn()
    with given_classes(fast.drawn):
        plain = outcome(*learned(run, batch))
    return fast, plain


def test_zero_logits_predict_exactly_zero_where_products_are_fused_with_sums() -> None:
    bins = symexp_bins(255).to(DEVICE)
    mean = torch.compile(lambda logits: TwoHot(logits, bins).mean(), fullgraph=True)
    assert torch.equal(mean(torch.zeros(64, 255, device=DEVICE)), torch.zeros(64, device=DEVICE))


@pytest.mark.parametrize(("size", "kind"), CASES)
def test_float32_gives_the_losses_and_gradients_of_plain_code(size: str, kind: str) -> None:
    fast, plain = both(size, kind, "float32")
    found = {name: distance(fast.losses[name], loss) for name, loss in plain.losses.items()}
    # Network by network: those of the actor are small beside those of the decoder.
    found |= {f"{name}'s": distance(flat(fast.gradients[name]), flat(part)) for name, part in plain.gradients.items()}
    print(size, kind, {name: f"{value:.1e}" for name, value in found.items()})
    allowed = {"encoder's": ALLOWED if kind == "vector" else ALLOWED_OF_POOLS}
    assert {name: value for name, value in found.items() if not value < allowed.get(name, ALLOWED)} == {}


@pytest.mark.parametrize(("size", "kind"), CASES)
def test_bfloat16_gives_the_direction_of_plain_code(size: str, kind: str) -> None:
    """Of the gradients of each network, and of each tensor that has a thousandth of them."""
    fast, plain = both(size, kind, "bfloat16")
    whole = {name: cosine(flat(fast.gradients[name]), flat(part)) for name, part in plain.gradients.items()}
    worst = {name: worst_cosine(fast.gradients[name], part) for name, part in plain.gradients.items()}
    print(size, kind, {name: f"{whole[name]:.5f}, worst tensor {worst[name]:.5f}" for name in whole})
    assert min(whole.values()) > 0.99
    assert min(worst.values()) > 0.99


def worst_cosine(ones: list[Tensor], others: list[Tensor]) -> float:
    threshold = flat(others).norm() / 1000
    return min(cosine(one, other) for one, other in zip(ones, others, strict=True) if other.norm() > threshold)


def test_a_thousand_updates_end_where_two_plain_seeds_do() -> None:
    """From the same rows and weights. Losses are means over the last hundred updates."""
    plain = [late_losses("float32", seed, *PLAIN) for seed in (0, 1)]
    fast = late_losses("bfloat16", 0)
    print({name: [f"{one[name]:.4f}" for one in (*plain, fast)] for name in fast})
    for name, value in fast.items():
        low, high = sorted(one[name] for one in plain)
        room = max(high - low, 0.02 * abs(high))
        assert low - room <= value <= high + room, name


def late_losses(precision: str, seed: int, *settings: str) -> dict[str, float]:
    run = made("1m", "mixed", precision, *settings)
    run.rng.stream("update").manual_seed(seed)
    captured = run.captured()
    for _ in range(900):
        captured()
    sums: dict[str, float] = {}
    for _ in range(100):
        for name, value in captured().items():
            if name.startswith("loss/"):
                sums[name] = sums.get(name, 0.0) + value.item() / 100
    return sums
