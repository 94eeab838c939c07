"""The numbers about a world model, against a model that is never wrong and against sums done by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
import torch
from torch import Tensor

from reverie.orchestration.held_out import leads
from reverie.orchestration.model_health import model_health
from reverie.types import Observation, Space, Spaces
from reverie.workflows.open_loop import OpenLoop

SPACES = Spaces(
    obs={
        "image": Space(shape=(4, 4, 3), dtype="uint8"),
        "position": Space(shape=(2,), dtype="float32"),
        "speed": Space(shape=(), dtype="float32"),
        "room": Space(shape=(), dtype="int64", classes=5),
        "keys": Space(shape=(2,), dtype="int64", classes=(2, 3)),
    },
    action=Space(shape=(), dtype="int64", classes=2),
)
DISCOUNT = 0.9
GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/dreams.md"


def observation(size: int = 3, length: int = 20, border: int = 12) -> Observation:
    rng = torch.Generator().manual_seed(0)
    is_first = torch.zeros(size, length, dtype=torch.bool)
    is_first[1, border] = True
    is_terminal = torch.zeros(size, length, dtype=torch.bool)
    is_terminal[1, border - 1] = True
    return Observation(
        obs={
            "image": torch.randint(256, (size, length, 4, 4, 3), generator=rng, dtype=torch.uint8),
            "position": torch.randn(size, length, 2, generator=rng),
            "speed": torch.randn(size, length, generator=rng),
            "room": torch.randint(5, (size, length), generator=rng),
            "keys": torch.randint(2, (size, length, 2), generator=rng),
        },
        reward=torch.randn(size, length, generator=rng),
        is_first=is_first,
        is_last=is_terminal,
        is_terminal=is_terminal,
    )


def perfect(seen: Observation) -> OpenLoop:
    obs = {key: value.clone() for key, value in seen.obs.items()}
    obs["image"] = seen.obs["image"].float() / 255
    live = (~seen.is_terminal).float()
    return OpenLoop(
        obs=obs,
        reward=seen.reward.clone(),
        real_reward=seen.reward,
        live=live,
        discount=DISCOUNT,
        latent_error=torch.zeros_like(live),
    )


def lead_of(seen: Observation) -> Tensor:
    return leads(seen.is_first, context=2, period=100)


def test_a_model_that_is_never_wrong() -> None:
    seen = observation()
    metrics = model_health(seen, perfect(seen), lead_of(seen), SPACES)
    errors = {name: value for name, value in metrics.items() if "error" in name or "bias" in name or "brier" in name}
    assert errors.keys() == {
        *(f"{kind}_error_{lead}" for kind in ("image", "vector", "class", "latent") for lead in (1, 5, 15)),
        *("reward_bias", "reward_error", "return_error", "continue_brier"),
    }
    assert all(abs(value) < 1e-12 for value in errors.values()), errors
    assert metrics["reward_correlation"] == pytest.approx(1.0)
    assert metrics["return_imagined"] == metrics["return_real"]
    assert metrics["continue_predicted"] == metrics["continue_real"] < 1


def test_errors_are_means_over_the_rows_of_that_lead_alone() -> None:
    seen = observation()
    lead, predicted = lead_of(seen), perfect(seen)
    predicted.obs["image"][lead == 5] += 0.5
    predicted.obs["position"][lead == 5] += torch.tensor([1.0, 3.0])  # mean square 5, and 0 of the other vector
    predicted.obs["room"][lead == 1] += 1  # every class is wrong, and none of the other key
    predicted.obs["image"][lead == 0] = 7.0  # rows that were seen do not count
    predicted.obs["speed"][lead == 2] = 7.0
    metrics = model_health(seen, predicted, lead, SPACES)
    assert metrics["image_error_5"] == pytest.approx(0.25)
    assert metrics["vector_error_5"] == pytest.approx(2.5)
    assert metrics["class_error_1"] == pytest.approx(0.5)
    others = [f"{kind}_error_{k}" for kind in ("image", "vector", "class") for k in (1, 5, 15)]
    wrong = {"image_error_5", "vector_error_5", "class_error_1"}
    assert all(metrics[name] < 1e-12 for name in others if name not in wrong)


def test_rewards_ends_and_returns_by_hand() -> None:
    """One sequence: two rows seen, three imagined."""
    seen = Observation(
        obs={},
        reward=torch.tensor([[9.0, 9.0, 1.0, 0.0, 2.0]]),
        is_first=torch.zeros(1, 5, dtype=torch.bool),
        is_last=torch.zeros(1, 5, dtype=torch.bool),
        is_terminal=torch.tensor([[False, False, False, False, True]]),
    )
    predicted = OpenLoop(
        obs={},
        reward=torch.tensor([[0.0, 0.0, 0.5, 0.5, 3.5]]),
        real_reward=seen.reward,
        live=torch.tensor([[0.0, 0.0, 1.0, 0.8, 0.4]]),
        discount=0.5,
    )
    metrics = model_health(seen, predicted, lead_of(seen), SPACES)
    correlation = torch.corrcoef(torch.tensor([[1.0, 0.0, 2.0], [0.5, 0.5, 3.5]], dtype=torch.float64))[0, 1]
    assert metrics == pytest.approx(
        {
            "reward_bias": (-0.5 + 0.5 + 1.5) / 3,
            "reward_error": 2.5 / 3,
            "reward_correlation": float(correlation),
            "continue_brier": (0.0 + 0.04 + 0.16) / 3,
            "continue_predicted": 2.2 / 3,
            "continue_real": 2 / 3,
            "return_real": 1.0 + 0.0 + 2.0 / 4,
            "return_imagined": 0.5 + 0.25 + 3.5 / 4,
            "return_error": 0.125,
        }
    )


def test_every_imagined_stretch_has_a_return_of_at_most_fifteen_steps() -> None:
    seen = observation(length=40)
    seen.reward.fill_(1.0)
    predicted = perfect(seen)
    predicted.reward[1] = 0.0
    metrics = model_health(seen, predicted, lead_of(seen), SPACES)

    def total(steps: int) -> float:
        return (1 - DISCOUNT**steps) / (1 - DISCOUNT)

    # Sequence 1 has two stretches: ten rows before its border, and more than fifteen after it.
    real = [total(15), total(10), total(15), total(15)]
    assert metrics["return_real"] == pytest.approx(sum(real) / 4)
    assert metrics["return_imagined"] == pytest.approx((real[0] + real[3]) / 4)
    assert metrics["return_error"] == pytest.approx((real[1] + real[2]) / 4)


def test_what_cannot_be_told_is_left_out() -> None:
    seen = observation(length=6, border=3)
    seen.reward.fill_(1.0)
    metrics = model_health(seen, perfect(seen), lead_of(seen), SPACES)
    assert "reward_correlation" not in metrics
    assert "image_error_1" in metrics
    assert "image_error_5" not in metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_the_guide_explains_every_metric() -> None:
    seen = observation()
    found = {re.sub(r"_(1|5|15)$", "_K", name) for name in model_health(seen, perfect(seen), lead_of(seen), SPACES)}
    documented = re.findall(r"^\| `eval/model/(\w+)`", GUIDE.read_text(encoding="utf-8"), flags=re.M)
    assert sorted(documented) == sorted(found)
