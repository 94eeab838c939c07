"""What is written otherwise for the compiler computes the same: steps are traced, and then run as they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.backends.debugging import aot_eager as uncompiled

from reverie.commands.composition import composed
from reverie.components.networks.distributions import TwoHot, symexp_bins
from reverie.rehearsal import rehearsal
from reverie.runtime.adam import Adam
from reverie.runtime.compilation import compiled_step, use_compiled_steps, use_walk
from reverie.runtime.optimizer import LaProp
from reverie.types import Space, Spaces

SPACES = {
    "numbers": Spaces(obs={"vector": Space(shape=(7,), dtype="float32")}, action=Space(shape=(2,), dtype="float32")),
    "numbers and classes": Spaces(
        obs={"vector": Space(shape=(7,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=3)
    ),
    "classes": Spaces(
        obs={"image": Space(shape=(16, 16, 3), dtype="uint8")}, action=Space(shape=(), dtype="int64", classes=3)
    ),
}
SIZES = ("size=debug", "size.blocks=4", "size.depth=4", "training.batch_size=2", "training.batch_length=5")
OPTIMIZERS = (LaProp, Adam)


@contextmanager
def traced(patch: pytest.MonkeyPatch, *, is_on: bool) -> Iterator[None]:
    compile_with = torch.compile
    patch.setattr(torch, "compile", lambda function, **given: compile_with(function, backend=uncompiled, **given))
    torch.compiler.reset()
    use_compiled_steps(is_on=is_on)
    use_walk("by_hand")
    try:
        yield
    finally:
        use_compiled_steps(is_on=False)
        use_walk("autograd")
        torch.compiler.reset()


CASES = [
    ("dreamer_v3", "numbers"),
    ("dreamer_v3", "classes"),
    ("dreamer_v3_2023", "numbers"),
    ("dreamer_v3_2023", "classes"),
    pytest.param("dreamer_v1", "numbers", marks=pytest.mark.long),
    pytest.param("dreamer_v2", "numbers", marks=pytest.mark.long),
    pytest.param("dreamer_v2", "numbers and classes", marks=pytest.mark.long),
]
"""Those with gradients through the dynamics, and with optimisers of their own for actor and critic, among them."""


@pytest.mark.parametrize(("form", "spaces"), CASES)
def test_updates_are_those_of_eager_code(form: str, spaces: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    groups = [f"{group}={form}" for group in ("components", "controller", "workflow")]
    for is_on in (False, True):
        config = composed("gym_CartPole-v1", ["experiment=dreamer_cartpole", *groups, *SIZES, "workflow.horizon=3"])
        run = rehearsal(config, spaces=SPACES[spaces], device=torch.device("cpu"), streams=2, rows=64)
        with monkeypatch.context() as patch, traced(patch, is_on=is_on):
            metrics = [run.update() for _ in range(3)]
        found.append(torch.stack([torch.stack([one[key] for key in sorted(one)]).float() for one in metrics]))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)


def moved(kind: type[LaProp] | type[Adam], *, is_clipping: bool = True) -> dict[str, Tensor]:
    """Weights and memory after five updates: one of them is skipped, and one finds a parameter frozen."""
    rng = torch.Generator().manual_seed(0)
    parameters = {f"p{rows}": nn.Parameter(torch.randn(rows, 5, generator=rng)) for rows in range(1, 7)}
    optimizer = kind(parameters, learning_rate=0.01, clip=0.3 if is_clipping else 1e6)
    for update in range(5):
        gradients = [torch.randn(5, rows, generator=rng).T * (10.0 if rows == 3 else 0.1) for rows in range(1, 7)]
        if update == 2:
            gradients[0][0, 0] = float("nan")
        parameters["p4"].requires_grad_(update != 3)
        assert optimizer.apply(gradients)["skipped"] == (update == 2)
    state = optimizer.get_state()
    found = {"weight": parameters, "mean": state["mean"], "square": state["square"]}
    return {f"{kind}/{name}": value.detach() for kind, part in found.items() for name, value in part.items()}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_in_one_piece_makes_the_same_steps(
    kind: type[LaProp] | type[Adam], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = moved(kind)
    with traced(monkeypatch, is_on=True):
        ours, unclipped = moved(kind), moved(kind, is_clipping=False)
    assert all(torch.allclose(ours[name], value, rtol=1e-5, atol=1e-7) for name, value in plain.items())
    assert not all(torch.allclose(unclipped[name], value, rtol=1e-5, atol=1e-7) for name, value in plain.items())


@pytest.mark.parametrize("mode", ["default", "warn"])
def test_kernels_are_not_chosen_by_their_time_where_a_run_is_deterministic(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import config

    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode(mode)
    try:
        with config.patch(deterministic=mode == "default"), traced(monkeypatch, is_on=True):
            assert compiled_step(lambda one: one + 1)(torch.ones(1)).item() == 2
            assert config.deterministic == (mode == "warn")
    finally:
        torch.set_deterministic_debug_mode(before)


@pytest.mark.parametrize("count", [8, 255])
def test_predictions_over_bins_subtract_before_they_multiply(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """A compiler for a GPU fuses products with sums, as if this processor did not round them: zero must stay zero."""
    bins = symexp_bins(count)
    mean = compiled_step(lambda logits: TwoHot(logits, bins).mean())
    nearly_flat = torch.randn(5, count, generator=torch.Generator().manual_seed(0)) / 100
    plain = TwoHot(nearly_flat, bins).mean()
    with traced(monkeypatch, is_on=True):
        torch.testing.assert_close(mean(nearly_flat), plain, rtol=1e-3, atol=0)
        bins[: count // 2] *= 1 + 2e-7  # what a rounding of one product of each pair amounts to
        assert torch.equal(mean(torch.zeros(3, count)), torch.zeros(3))
    assert TwoHot(torch.zeros(3, count), bins).mean().abs().min() > 0.1
