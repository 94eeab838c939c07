"""Adam against torch's own, its clip and weight decay against their definitions, and its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reverie.runtime.adam import Adam
from reverie.types import ReverieError

SHAPES = {"kernel": (4, 3), "bias": (3,)}
UPDATES = 6


def parameters(dtype: torch.dtype = torch.float64) -> dict[str, nn.Parameter]:
    rng = torch.Generator().manual_seed(0)
    return {
        name: nn.Parameter(torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype))
        for name, shape in SHAPES.items()
    }


def gradient(update: int, *, size: float = 1.0, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    rng = torch.Generator().manual_seed(100 + update)
    return [size * torch.randn(shape, generator=rng, dtype=torch.float64).to(dtype) for shape in SHAPES.values()]


@pytest.mark.parametrize(("clip", "size"), [(100.0, 1.0), (0.5, 3.0)])
def test_it_moves_as_the_adam_of_torch_behind_a_global_clip(clip: float, size: float) -> None:
    ours, theirs = parameters(), parameters()
    adam = Adam(ours, learning_rate=0.01, epsilon=1e-5, clip=clip)
    expected = torch.optim.Adam(theirs.values(), lr=0.01, eps=1e-5)
    for update in range(UPDATES):
        metrics = adam.apply(gradient(update, size=size))
        for parameter, grad in zip(theirs.values(), gradient(update, size=size), strict=True):
            parameter.grad = grad
        norm = nn.utils.clip_grad_norm_(theirs.values(), clip)
        expected.step()
        assert float(metrics["grad_norm"]) == pytest.approx(float(norm))
        assert float(metrics["grad_clipped_share"]) == float(norm > clip)
        for name in SHAPES:
            # Bias corrections are rounded to float32 on the way.
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-6, atol=1e-7)


def test_weight_decay_takes_a_share_whatever_the_rate() -> None:
    decayed, plain = parameters(), parameters()
    before = {name: value.detach().clone() for name, value in decayed.items()}
    Adam(decayed, learning_rate=0.01, weight_decay=0.1).apply(gradient(0))
    Adam(plain, learning_rate=0.01).apply(gradient(0))
    for name in SHAPES:
        torch.testing.assert_close(decayed[name].detach(), plain[name].detach() - 0.1 * before[name])
    still = parameters()
    Adam(still, learning_rate=0.0, weight_decay=0.1).apply(gradient(0))
    for name in SHAPES:
        torch.testing.assert_close(still[name].detach(), 0.9 * before[name])


def test_warm_up_and_decay_of_the_rate() -> None:
    adam = Adam(parameters(), learning_rate=0.1, warmup_updates=2, decay=0.5)
    rates = [
        float(adam.apply(gradient(0), progress=torch.tensor(progress))["learning_rate"]) for progress in (0, 0, 0, 1)
    ]
    assert rates == pytest.approx([0.0, 0.05, 0.1, 0.05])


def test_frozen_parameters_stay_and_a_wholly_frozen_set_has_no_gradients() -> None:
    given = parameters(torch.float32)
    adam = Adam(given, learning_rate=0.1)
    adam.step(sum((value.square().sum() for value in given.values()), torch.zeros(())))
    given["bias"].requires_grad_(False)
    before = given["bias"].clone()
    adam.step(given["kernel"].square().sum())
    assert torch.equal(given["bias"], before)
    given["kernel"].requires_grad_(False)
    assert not any(grad.any() for grad in adam.gradients(torch.ones((), requires_grad=True)))


@pytest.mark.parametrize("is_restored", [True, False])
def test_a_restored_optimizer_goes_on_bit_equally_and_another_does_not(is_restored: bool) -> None:
    ours, theirs = parameters(torch.float32), parameters(torch.float32)
    one, other = Adam(ours, learning_rate=0.01), Adam(theirs, learning_rate=0.01)
    addresses = [parameter.data_ptr() for parameter in theirs.values()]
    for update in range(3):
        one.apply(gradient(update, dtype=torch.float32))
    for name in SHAPES:
        theirs[name].data.copy_(ours[name])
    if is_restored:
        other.set_state(one.get_state())
    for update in range(3, UPDATES):
        one.apply(gradient(update, dtype=torch.float32))
        other.apply(gradient(update, dtype=torch.float32))
    assert all(torch.equal(ours[name], theirs[name]) for name in SHAPES) == is_restored
    assert [parameter.data_ptr() for parameter in theirs.values()] == addresses


@pytest.mark.parametrize("setting", [{"clip": 0.0}, {"mean_decay": 1.1}, {"weight_decay": -0.1}, {"epsilon": 0.0}])
def test_numbers_out_of_range_are_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ReverieError, match=next(iter(setting))):
        Adam(parameters(), learning_rate=0.01, **setting)
