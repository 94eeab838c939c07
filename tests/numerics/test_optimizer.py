"""LaProp against the published optimiser, and its memory."""

from __future__ import annotations

import pytest
import torch
from reference import arrays, assert_near
from torch import Tensor, nn

from reverie.runtime.optimizer import LaProp

FILE = arrays("optimizer")
NAMES = ["net/lin/kernel", "net/conv/kernel", "net/lin/bias", "net/head/kernel", "net/norm/scale"]
UNDECAYED = ["net/lin/bias", "net/norm/scale"]
"""What the setting with weight decay leaves alone: there is no weight decay here."""
SETTINGS = {"warm3": (0.01, 3), "default": (4e-5, 1000), "nowarm_wd": (0.01, 0)}
UPDATES = 6


def optimizer(setting: str, dtype: torch.dtype, names: list[str] = NAMES) -> tuple[LaProp, dict[str, nn.Parameter]]:
    parameters = {name: nn.Parameter(FILE[f"init/{name}"].to(dtype)) for name in names}
    learning_rate, warmup = SETTINGS[setting]
    return LaProp(parameters, learning_rate=learning_rate, warmup_updates=warmup), parameters


def gradient(update: int, dtype: torch.dtype, names: list[str] = NAMES) -> tuple[Tensor, ...]:
    return tuple(FILE[f"grad/{name}"][update].to(dtype) for name in names)


@pytest.mark.parametrize("setting", SETTINGS)
def test_parameters_after_each_update(setting: str) -> None:
    names = UNDECAYED if setting == "nowarm_wd" else NAMES
    laprop, parameters = optimizer(setting, torch.float32, names)
    for update in range(UPDATES):
        laprop.apply(gradient(update, torch.float32, names))
        for name in names:
            torch.testing.assert_close(
                parameters[name].detach(), FILE[f"{setting}/param/{name}"][update], rtol=0, atol=1e-6
            )


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_change(setting: str) -> None:
    """In float64, where the small difference of two large parameters keeps its digits."""
    names = UNDECAYED if setting == "nowarm_wd" else NAMES
    laprop, parameters = optimizer(setting, torch.float64, names)
    for update in range(UPDATES):
        before = {name: parameters[name].detach().clone() for name in names}
        laprop.apply(gradient(update, torch.float64, names))
        for name in names:
            change = parameters[name].detach() - before[name]
            expected = FILE[f"{setting}/update/{name}"][update]
            assert_near(change, expected, 1e-4, what=f"{name}, update {update}")


def test_the_first_update_of_a_warm_up_changes_nothing() -> None:
    laprop, parameters = optimizer("warm3", torch.float32)
    metrics = laprop.apply(gradient(0, torch.float32))
    assert metrics["learning_rate"] == 0
    assert all(torch.equal(parameters[name], FILE[f"init/{name}"]) for name in NAMES)
    rates = [float(laprop.apply(gradient(1, torch.float32))["learning_rate"]) for _ in range(4)]
    assert rates == pytest.approx([0.01 / 3, 0.02 / 3, 0.01, 0.01])


def test_the_clipped_share_counts_tensors() -> None:
    laprop, _ = optimizer("warm3", torch.float32)
    raw, clipped = gradient(0, torch.float32), [FILE[f"agc_of_init/{name}"][0] for name in NAMES]
    was_clipped = [not torch.allclose(a, b, rtol=1e-4, atol=0) for a, b in zip(raw, clipped, strict=True)]
    metrics = laprop.apply(raw)
    assert float(metrics["grad_clipped_share"]) == pytest.approx(sum(was_clipped) / len(NAMES))
    assert float(metrics["grad_norm"]) == pytest.approx(float(torch.cat([g.flatten() for g in raw]).norm()), rel=1e-5)


def test_step_differentiates_and_gives_zero_where_the_loss_does_not_reach() -> None:
    used, unused = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2))
    laprop = LaProp({"used": used, "unused": unused}, learning_rate=0.1, warmup_updates=0)
    laprop.step(used.square().sum())
    assert torch.equal(unused.detach(), torch.ones(2))
    assert torch.allclose(used.detach(), torch.full((3,), 0.9))


def test_a_restored_optimizer_goes_on_bit_equally() -> None:
    one, ours = optimizer("warm3", torch.float32)
    for update in range(3):
        one.apply(gradient(update, torch.float32))
    other, theirs = optimizer("warm3", torch.float32)
    addresses = [parameter.data_ptr() for parameter in theirs.values()]
    for name in NAMES:
        theirs[name].data.copy_(ours[name])
    state = one.get_state()
    other.set_state(state)
    for update in range(3, UPDATES):
        one.apply(gradient(update, torch.float32))
        other.apply(gradient(update, torch.float32))
    assert all(torch.equal(ours[name], theirs[name]) for name in NAMES)
    assert [parameter.data_ptr() for parameter in theirs.values()] == addresses
    assert state["updates"] == 3, "what was given away must not change afterwards"


def test_a_state_that_is_not_restored_shows() -> None:
    one, ours = optimizer("warm3", torch.float32)
    for update in range(3):
        one.apply(gradient(update, torch.float32))
    other, theirs = optimizer("warm3", torch.float32)
    for name in NAMES:
        theirs[name].data.copy_(ours[name])
    one.apply(gradient(3, torch.float32))
    other.apply(gradient(3, torch.float32))
    assert not torch.equal(ours["net/lin/kernel"], theirs["net/lin/kernel"])


def test_the_rate_falls_with_the_progress_of_the_phase() -> None:
    laprop = LaProp({"p": torch.nn.Parameter(torch.ones(2))}, learning_rate=0.1, warmup_updates=0, decay=0.9)
    rates = [
        float(laprop.apply((torch.ones(2),), progress=torch.tensor(progress))["learning_rate"])
        for progress in (0.0, 0.5, 1.0)
    ]
    assert rates == pytest.approx([0.1, 0.055, 0.01])
    with pytest.raises(ValueError, match="progress"):
        laprop.apply((torch.ones(2),))
