"""Every form of Dreamer acts on fixed tensors, and through a copy, as it does by itself: in float32 and in bfloat16."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from reverie.commands.composition import composed
from reverie.rehearsal import made_up, rehearsal
from reverie.runtime.acting import Acting
from reverie.types import Observation, Space, Spaces

CPU = torch.device("cpu")
SPACES = Spaces(
    obs={"image": Space(shape=(64, 64, 3), dtype="uint8"), "vector": Space(shape=(3,), dtype="float32")},
    action=Space(shape=(2,), dtype="float32"),
)
FORMS = {
    "v3": [],
    "v3_2023": [f"{group}=dreamer_v3_2023" for group in ("components", "controller", "workflow")],
    "v2": [f"{group}=dreamer_v2" for group in ("components", "controller", "workflow")],
    "v1": [f"{group}=dreamer_v1" for group in ("components", "controller", "workflow")],
}
SIZES = {"v3": "debug", "v3_2023": "2023_s", "v2": "v2", "v1": "v1"}


def seen(step: int) -> Observation:
    rng = torch.Generator().manual_seed(step)
    no = torch.zeros(2, dtype=torch.bool)
    return Observation(
        obs={key: made_up(space, 2, rng) for key, space in SPACES.obs.items()},
        reward=torch.rand(2, generator=rng),
        is_first=no if step % 3 else ~no,
        is_last=no,
        is_terminal=no,
    )


def walked(form: str, precision: str, *, is_recorded: bool) -> list[Tensor]:
    small = ["environment=dmc", "training.batch_size=1", "training.batch_length=2", f"size={SIZES[form]}", *FORMS[form]]
    config = composed("gym_CartPole-v1", [*small, f"runtime.precision={precision}"])
    run = rehearsal(config, spaces=SPACES, device=CPU, streams=2, rows=8)
    acting, policy = Acting(run.rng, CPU, captures=is_recorded, lags=is_recorded), run.workflow.policy(None)
    acting.follow(run.workflow.modules)
    carry, found = policy.initial(2), []
    for step in range(4):
        acted = acting.step(policy, carry, seen(step), mode="train")
        carry = acted.carry
        found += [acted.action.clone(), *(value.clone() for value in (*carry.values(), *acted.row.stored.values()))]
    return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_fixed_tensors_and_copies_change_no_bit(form: str, precision: str) -> None:
    plain = walked(form, precision, is_recorded=False)
    fixed = walked(form, precision, is_recorded=True)
    assert all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(plain, fixed, strict=True))
