"""Weights of the published TD-MPC2 code in our modules and back, and updates and plans that can be compared with it.

Parameters have the published names (``_encoder.state.0.weight``), with or without ``param/`` in front. The three
functions take a parsed configuration, parameters and inputs, and give the outputs under the published names; every
random draw is among the inputs, and the two critics that are drawn are the first and the second.

The published code keeps its scale and its last plan in one tensor each, and what was recorded from it shows them as
they were at the end: so do ``after*/scale_value`` and ``plan*/prev_mean_after`` here. ``info*/pi_scale`` is the scale
of each update, and the last of ``plan*/mean`` the plan of each call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.components.controllers.mppi import Plan, PlanNoise
from reverie.components.controllers.policy_prior import PriorDraw
from reverie.interop.links import Arrays, Named, exported, load
from reverie.interop.tdmpc2_agent import ShownAdam, planner, workflow_of
from reverie.interop.tdmpc2_names import encoder_of, learning_links, target_links
from reverie.interop.tdmpc2_settings import Settings
from reverie.types import Metrics, ReverieError
from reverie.workflows.tdmpc import Tdmpc
from reverie.workflows.tdmpc_records import Modelled, Transitions, UpdateNoise

_CALL = re.compile(r"plan\d+/")
_BESIDE = ("log_std_min", "log_std_dif", "_detach_Qs")
"""Of a published checkpoint: settings, and a second view of the critics."""


def load_parameters(workflow: Tdmpc, params: Mapping[str, np.ndarray]) -> None:
    """Write published parameters into ``workflow``, target critics included."""
    load(learning_links(workflow) + target_links(workflow), _plain_names(params))


def parameters(workflow: Tdmpc) -> Arrays:
    """The weights of ``workflow`` under the published names: what ``load_parameters`` takes."""
    return exported(learning_links(workflow) + target_links(workflow))


def update(config: Mapping[str, Any], params: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Successive updates on ``batch1/...``, ``batch2/...``, as many as there are."""
    workflow, given = _loaded(config, params), Named(inputs, kind="array")
    if "batch1/obs" not in given:
        raise ReverieError("the array batch1/obs is missing: there is nothing to update on.")
    scale = workflow.modules()["return_scale"].get_buffer("value")
    scale.copy_(torch.as_tensor(given.get("scale_value", np.ones(1)), dtype=torch.float32).reshape(()))
    found: Arrays = {}
    number = 1
    while f"batch{number}/obs" in given:
        seen, noise = _transitions(given, f"batch{number}"), _update_noise(given, f"noise{number}")
        metrics, modelled, _ = workflow.learn(seen, noise)
        found |= _info(f"info{number}", metrics, modelled) | _outputs(f"out{number}", modelled)
        if number == 1:
            found |= _gradients(workflow)
        found |= {f"after{number}/{name}": value for name, value in parameters(workflow).items()}
        number += 1
    return found | {f"after{one}/scale_value": scale.numpy().reshape(1).copy() for one in range(1, number)}


@torch.no_grad()
def model(config: Mapping[str, Any], params: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]) -> Arrays:
    """What every network says of ``obs``, ``action`` and the policy noise ``eps``."""
    workflow, given = _loaded(config, params), Named(inputs, kind="array")
    obs, action, noise = (_tensor(given[name]) for name in ("obs", "action", "eps"))
    parts, latent = workflow.model, encoder_of(workflow)({"obs": obs}, {})
    found: dict[str, Tensor] = {
        "z": latent,
        "next_z": parts.dynamics(latent, action),
        "reward_logits": parts.reward_head.output(latent, action),
        "reward": parts.reward_head(latent, action).mean().unsqueeze(-1),
    }
    target = workflow.target_critic
    for prefix, critic in (("", parts.critic), ("target_", target)):
        values = critic(latent, action).mean().unsqueeze(-1)
        found[f"{prefix}q_logits"] = critic.output(latent, action)
        found[f"{prefix}q_min"], found[f"{prefix}q_avg"] = values[:2].amin(0), values[:2].mean(0)
        found |= {} if prefix else {"q_values": values}
    return _arrays(found | _policy(parts.prior(latent, noise)))


@torch.no_grad()
def plan(config: Mapping[str, Any], params: Mapping[str, np.ndarray], inputs: Mapping[str, np.ndarray]) -> Arrays:
    """Every planning call among the inputs, ``plan1/...``, ``plan2/...``, each from its own ``prev_mean``."""
    settings, workflow, given = Settings(config), _loaded(config, params), Named(inputs, kind="array")
    calls = sorted({name.partition("/")[0] for name in given if _CALL.match(name)}, key=lambda call: int(call[4:]))
    if not calls:
        raise ReverieError("the array plan1/obs is missing: there is nothing to plan from.")
    found: Arrays = {}
    for call in calls:
        here = Named({name: given[f"{call}/{name}"] for name in _within(given, call)}, kind=f"array {call}/")
        found |= {f"{call}/{name}": value for name, value in _one_plan(settings, workflow, here).items()}
    last_mean = found[f"{calls[-1]}/mean"][-1]
    return found | {f"{call}/prev_mean_after": last_mean.copy() for call in calls}


def _one_plan(settings: Settings, workflow: Tdmpc, given: Named) -> Arrays:
    noise = _plan_noise(settings, given)
    previous = _tensor(given["prev_mean"]).unsqueeze(1)
    if bool(given["t0"]):
        previous = torch.zeros_like(previous)
    latent = encoder_of(workflow)({"obs": _tensor(given["obs"]).reshape(1, -1)}, {})
    made = planner(settings, elites=noise.choice.shape[1])(workflow.model, latent, previous, noise)
    return _plan_outputs(made)


def _plan_noise(settings: Settings, given: Named) -> PlanNoise:
    drawn, last_action = _tensor(given["noise_samples"]), _tensor(given["noise_value_pi"])
    iterations, horizon, rest, dim = drawn.shape
    samples = last_action.shape[1]
    proposed = _tensor(given.get("noise_pi_trajs", np.zeros((horizon, 0, dim))))
    choice = _tensor(given["noise_gumbel_exponential"])
    settings.check(
        horizon=horizon, num_samples=samples, num_elites=len(choice), num_pi_trajs=proposed.shape[1], action_dim=dim
    )
    if samples != rest + proposed.shape[1]:
        raise ReverieError(f"the noise is for {rest} + {proposed.shape[1]} plans, but {samples} are valued.")
    is_greedy = bool(given["eval_mode"])
    return PlanNoise(
        proposed=proposed.unsqueeze(1),
        drawn=drawn.unsqueeze(2),
        last_action=last_action.unsqueeze(1),
        pairs=torch.tensor([[0, 1]] * iterations),
        choice=choice.unsqueeze(0),
        action=None if is_greedy else _tensor(given["noise_action"]).unsqueeze(0),
    )


def _plan_outputs(made: Plan) -> Arrays:
    steps, last = made.steps, made.steps[-1]
    return _arrays(
        {
            "value": torch.stack([one.returns[0] for one in steps]).unsqueeze(-1),
            "actions": torch.stack([one.actions[:, 0] for one in steps]),
            "mean": torch.stack([one.mean[:, 0] for one in steps]),
            "std": torch.stack([one.std[:, 0] for one in steps]),
            "mean_init": made.begun.mean[:, 0],
            "std_init": made.begun.std[:, 0],
            "elite_value": torch.stack([one.elite_returns[0] for one in steps]),
            "elite_idxs": torch.stack([one.elite_index[0] for one in steps]).int(),
            "final_score": last.score[0],
            "final_elite_idxs": last.elite_index[0].int(),
            "selected_elite": made.chosen[0].int(),
            "action": made.action[0],
        }
    )


def _transitions(given: Named, batch: str) -> Transitions:
    return Transitions(
        obs={"obs": _tensor(given[f"{batch}/obs"])},
        action=_tensor(given[f"{batch}/action"]),
        reward=_tensor(given[f"{batch}/reward"]).squeeze(-1),
        is_terminal=_tensor(given[f"{batch}/terminated"]).squeeze(-1),
    )


def _update_noise(given: Named, name: str) -> UpdateNoise:
    first_two = torch.tensor([0, 1])
    return UpdateNoise(
        shift={},
        target_action=_tensor(given[f"{name}/td_target_eps"]),
        target_pair=first_two,
        policy_action=_tensor(given[f"{name}/pi_eps"]),
        policy_pair=first_two,
        model_keep=None,
        policy_keep=None,
    )


def _info(name: str, metrics: Metrics, modelled: Modelled) -> Arrays:
    renamed = {f"{loss}_loss": metrics[f"loss/{loss}"] for loss in (*modelled.losses, "total")}
    renamed |= {
        "grad_norm": metrics["model/grad_norm"],
        "pi_loss": metrics["loss/policy"],
        "pi_grad_norm": metrics["policy/grad_norm"],
        "pi_entropy": metrics["entropy"],
        "pi_scaled_entropy": metrics["entropy_bonus"],
        "pi_scale": metrics["return_scale"],
    }
    renamed |= {key: metrics[key] for key in ("termination_rate", "termination_f1") if key in metrics}
    return {f"{name}/{key}": value for key, value in _arrays(renamed).items()}


def _outputs(name: str, modelled: Modelled) -> Arrays:
    found = {
        "next_z": modelled.next_latents,
        "td_targets": modelled.targets.unsqueeze(-1),
        "zs": modelled.latents.detach(),
    }
    return {f"{name}/{key}": value for key, value in _arrays(found).items()}


def _gradients(workflow: Tdmpc) -> Arrays:
    by_place: dict[int, Tensor] = {}
    named = {f"{name}.{key}": one for name, part in workflow.modules().items() for key, one in part.named_parameters()}
    for optimizer in workflow.optimizers().values():
        assert isinstance(optimizer, ShownAdam)
        by_place |= {id(named[name]): gradient for name, gradient in optimizer.last_gradients.items()}
    return {f"grad/{link.name}": link.theirs(by_place[id(link.tensor)]) for link in learning_links(workflow)}


def _policy(draw: PriorDraw) -> dict[str, Tensor]:
    return {
        "pi_action": draw.action,
        "pi_mean": draw.mode,
        "pi_log_std": draw.spread,
        "pi_entropy": draw.entropy.unsqueeze(-1),
        "pi_scaled_entropy": draw.bonus.unsqueeze(-1),
    }


def _loaded(config: Mapping[str, Any], params: Mapping[str, np.ndarray]) -> Tdmpc:
    named = Named(_plain_names(params), kind="parameter")
    with torch.random.fork_rng(devices=[]):  # for fresh weights, which the given ones replace
        workflow = workflow_of(Settings(config), named)
    load_parameters(workflow, named)
    return workflow


def _plain_names(params: Mapping[str, np.ndarray]) -> Arrays:
    plain = {name.removeprefix("param/"): value for name, value in params.items()}
    return {name: value for name, value in plain.items() if not name.startswith(_BESIDE)}


def _within(given: Named, call: str) -> list[str]:
    return [name.removeprefix(f"{call}/") for name in given if name.startswith(f"{call}/")]


def _tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float32))


def _arrays(found: Mapping[str, Tensor]) -> Arrays:
    return {name: value.detach().numpy().copy() for name, value in found.items()}
