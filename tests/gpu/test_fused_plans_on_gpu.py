"""Plans in kernels of their own on a GPU: those of torch's operations, the same ones every time, recorded or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from reverie.benchmark import SPACES
from reverie.commands.composition import composed
from reverie.components.controllers.action_search import GaussianSearch
from reverie.components.controllers.fused_plans import FusedPlans
from reverie.components.controllers.mppi import PlanNoise
from reverie.rehearsal import Rehearsal, made_up, rehearsal
from reverie.runtime.acting import Acting
from reverie.runtime.kernel_room import HOPPER_BYTES, shared_bytes
from reverie.types import Observation
from reverie.workflows.tdmpc import Tdmpc

DEVICE = torch.device("cuda")
pytestmark = pytest.mark.skipif(shared_bytes(DEVICE) < HOPPER_BYTES, reason="the kernels are for a Hopper GPU")


def made(size: str, *settings: str) -> Rehearsal:
    common = ["experiment=tdmpc_dmc", f"size={size}", "runtime=gpu", "runtime.compiles_steps=false"]
    config = composed("gym_Pendulum-v1", [*common, *settings])
    run = rehearsal(config, spaces=SPACES["vector"], device=DEVICE, streams=1, rows=1)
    shake(run.workflow)
    return run


def shake(workflow: object) -> None:
    """Fresh outputs are zero, which would hide what depends on what."""
    assert isinstance(workflow, Tdmpc)
    rng = torch.Generator(DEVICE).manual_seed(1)
    with torch.no_grad():
        for module in workflow.modules().values():
            for parameter in module.parameters():
                parameter += 0.05 * torch.randn(parameter.shape, device=DEVICE, generator=rng)


def planned(run: Rehearsal, envs: int, dtype: torch.dtype, *, has_overlap: bool = True) -> dict[str, Tensor]:
    """By both, with one iteration: later ones begin where rounding has chosen among plans that are nearly as good."""
    workflow = run.workflow
    assert isinstance(workflow, Tdmpc)
    planner, model, rng = workflow._planner, workflow.model, torch.Generator(DEVICE).manual_seed(3)
    assert isinstance(planner.search, GaussianSearch)
    latent = torch.rand(envs, workflow._encoder.latent_dim, device=DEVICE, generator=rng)
    previous = torch.rand(3, envs, 6, device=DEVICE, generator=rng) - 0.5
    noise = one_iteration(planner.noise(envs, model, rng, is_greedy=False))
    fused = FusedPlans(planner, planner.search, model, dtype, has_overlap=has_overlap)
    with torch.no_grad():
        action, mean = fused(latent, previous, noise)
        again = fused(latent, previous, noise)[1]
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            plan = planner(model, latent, previous, noise)
    return {"action": action, "mean": mean, "again": again, "plain action": plan.action, "plain mean": plan.mean}


def one_iteration(noise: PlanNoise) -> PlanNoise:
    parts = {name: getattr(noise, name)[:1] for name in ("drawn", "last_action", "pairs")}
    return replace(noise, **parts)


@pytest.mark.parametrize("envs", [1, 16])
@pytest.mark.parametrize("size", ["tdmpc2_1m", "tdmpc2_5m", "tdmpc2_19m", "tdmpc2_48m"])
def test_they_are_the_plans_of_torch(size: str, envs: int) -> None:
    run = made(size)
    exact = planned(run, envs, torch.float32)
    assert torch.equal(exact["mean"], exact["again"])
    assert float((exact["mean"] - exact["plain mean"]).abs().max()) < 1e-3
    narrow = planned(run, envs, torch.bfloat16)
    assert torch.equal(narrow["mean"], narrow["again"])
    # Rounding chooses among plans that are nearly as good: not further from the exact ones than torch's own.
    ours, theirs = ((narrow[name] - exact["plain mean"]).abs().mean() for name in ("mean", "plain mean"))
    assert float(ours) < 1.5 * float(theirs) + 0.02


def test_kernels_that_overlap_make_the_same_plans() -> None:
    run = made("tdmpc2_5m")
    one, other = (planned(run, 1, torch.bfloat16, has_overlap=value) for value in (True, False))
    assert all(torch.equal(one[name], other[name]) for name in ("action", "mean"))


def test_recorded_plans_are_the_eager_ones_and_see_updates() -> None:
    def acted(*, captures: bool, learns: bool = True) -> list[Tensor]:
        run = made("tdmpc2_5m", "runtime.compiles_steps=true", "runtime.plans=fused")
        policy = run.workflow.policy(None)
        assert policy._fused is not None  # pyright: ignore[reportAttributeAccessIssue]
        acting = Acting(run.rng, DEVICE, captures=captures)
        rng, no = torch.Generator().manual_seed(0), torch.zeros(1, dtype=torch.bool)
        carry, actions = policy.initial(1), []
        for _ in range(8):
            obs = {key: made_up(space, 1, rng) for key, space in SPACES["vector"].obs.items()}
            seen = Observation(obs=obs, reward=no.float(), is_first=no, is_last=no, is_terminal=no)
            step = acting.step(policy, carry, seen, mode="train")
            carry = step.carry
            actions.append(step.action.clone())
            if learns:
                shake(run.workflow)
        return actions

    eager, recorded = acted(captures=False), acted(captures=True)
    assert all(torch.equal(a, b) for a, b in zip(eager, recorded, strict=True))
    without = acted(captures=True, learns=False)
    assert torch.equal(without[0], recorded[0])
    assert not any(torch.equal(a, b) for a, b in zip(without[1:], recorded[1:], strict=True))
