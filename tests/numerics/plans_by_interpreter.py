"""Started by a test with TRITON_INTERPRET=1: plans in kernels of their own beside those of torch's operations, as JSON.

Triton decides when a kernel is defined whether it is interpreted, so this must not happen in the process of the tests.
"""

from __future__ import annotations

import json
from dataclasses import replace

import torch
from small_tdmpc import shaken_tdmpc

from reverie.components.controllers.action_search import GaussianSearch
from reverie.components.controllers.fused_plans import FusedPlans
from reverie.components.controllers.plan_layers import can_be_layers

ENVS = 2
FEW = tuple(f"controller.planner.{name}" for name in ("samples=8", "elites=3", "iterations=1", "proposals=0"))
"""The interpreter takes a second for a hundred programs."""


def distances(
    *overrides: str,
    dtype: torch.dtype = torch.float32,
    is_greedy: bool = False,
    late: float = 0.0,
    chooses_again: bool = False,
) -> dict[str, float]:
    """Of the actions and the means of plans from those of torch's operations."""
    workflow = shaken_tdmpc(*FEW, *overrides)
    planner, model, rng = workflow._planner, workflow.model, torch.Generator().manual_seed(3)
    search = planner.search
    assert isinstance(search, GaussianSearch)
    assert can_be_layers(model)
    latent = torch.rand(ENVS, workflow._encoder.latent_dim, generator=rng)
    previous = torch.rand(3, ENVS, 2, generator=rng) - 0.5
    noise = planner.noise(ENVS, model, rng, is_greedy=is_greedy)
    fused = FusedPlans(planner, search, model, dtype, has_overlap=False)
    with torch.no_grad():
        if late:  # an update between the making of the copies and the plan
            weight = workflow._dynamics.network[0].weight  # not one number for all: the norm behind takes that out
            fused.layers.copies.refresh()
            weight += late * torch.randn(weight.shape, generator=rng)
        action, mean = fused(latent, previous, noise)
        plan = planner(model, latent, previous, noise)
        other = fused(latent, previous, replace(noise, choice=noise.choice.flip(1)))[0] if chooses_again else action
    return {
        "action": float((action - plan.action).abs().max()),
        "mean": float((mean - plan.mean).abs().max()),
        "other choice": float((action - other).abs().max()),
    }


torch.set_num_threads(1)
found = {
    "two iterations": distances("controller.planner.iterations=2", "controller.planner.proposals=3"),
    "greedy": distances(is_greedy=True, chooses_again=True),
    "cautious": distances("controller.critic.is_cautious=true"),
    "nothing is a multiple of a tile": distances(
        *("size.mlp_units=37", "size.latent_dim=24", "controller.planner.samples=37", "controller.planner.proposals=5")
    ),
    "long sums": distances("size.mlp_units=150", "size.latent_dim=136", "controller.planner.temperature=0.01"),
    "after an update": distances(late=0.3),
    "in float16": distances(dtype=torch.float16),
}
print(json.dumps(found))
