"""Weights of the published DreamerV3 code in our modules and back, and training steps that can be compared with it.

Parameters have the published names (``enc/...``, ``dyn/...``) and layouts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from reverie.components.controllers.dreamer import DreamerPolicy
from reverie.components.representation_learners.latents import Latent
from reverie.interop import dreamer_v3_report as report
from reverie.interop.dreamer_v3_agent import workflow_of
from reverie.interop.dreamer_v3_inputs import Given
from reverie.interop.dreamer_v3_parts import DreamerParts
from reverie.interop.links import Arrays, Link, Named, exported, load
from reverie.workflows.base import weighted_sum
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_records import Learned

COUNTER = "slowval_count/value"
"""How often the published slow critic was updated. Ours counts nothing, so the number stays outside."""

POLICY_CALLS = 3


def load_parameters(
    workflow: Dreamer,
    params: Mapping[str, np.ndarray],
    *,
    action_key: str = "action",
    image_keys: Sequence[str] | None = None,
) -> None:
    """Write published parameters into ``workflow``. ``image_keys`` is their order of several pictures."""
    parts = DreamerParts.of(workflow)
    links = parts.learning_links(action_key=action_key, image_keys=image_keys) + parts.memory_links()
    load(links, {name: value for name, value in _plain_names(params).items() if name != COUNTER})


def parameters(workflow: Dreamer, *, action_key: str = "action", image_keys: Sequence[str] | None = None) -> Arrays:
    """The weights of ``workflow`` under the published names: what ``load_parameters`` takes."""
    parts = DreamerParts.of(workflow)
    return exported(parts.learning_links(action_key=action_key, image_keys=image_keys) + parts.memory_links())


def train_step(
    config: dict[str, Any], params: dict[str, np.ndarray], inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """One update of our workflow on ``data/...``, and a second one on ``data2/...`` where that is given.

    ``config`` is flat and holds what differs from the published defaults, with ``obs``: the shape of each key.
    Samples are the most likely ones, continuous actions mean + stddev * ``sample_eps``. The result has the outputs
    under the published names: losses, gradients, parameters after each step, and what they were computed from.
    """
    params = Named(_plain_names(params), kind="parameter")
    given = Given.of(config, params, Named(inputs, kind="array"))
    with torch.random.fork_rng(devices=[]):  # for fresh weights, which the given ones replace
        workflow = workflow_of(given, params)
    load_parameters(workflow, params, image_keys=given.image_keys)
    parts = DreamerParts.of(workflow)
    links = parts.learning_links(image_keys=given.image_keys)
    outputs = {f"scale/{name}": value for name, value in given.scales().items()}
    outputs |= _policy_calls(parts, given)
    found, latents = _first_step(workflow, parts, given, links)
    outputs |= found | _after("after1", links, parts, params, 1)
    if "data2/reward" in inputs:
        learned = _learned(workflow, given, given.carry("data2", report.last_step(latents)), "data2")
        total = weighted_sum(learned.losses, given.settings.loss_weights)
        outputs |= report.second_metrics(learned, total, workflow.step(learned))
        outputs |= _after("after2", links, parts, params, 2)
    return outputs


def _first_step(workflow: Dreamer, parts: DreamerParts, given: Given, links: list[Link]) -> tuple[Arrays, Latent]:
    """All that the step shows, and the latents it ends with."""
    carry = given.carry("data", given.first_carry())
    learned = _learned(workflow, given, carry, "data")
    total = weighted_sum(learned.losses, given.settings.loss_weights)
    found = report.replayed(parts, given, carry, learned) | report.imagined(parts, given, learned)
    found |= report.losses(given, learned, links, total)
    before = exported(links)
    metrics = workflow.step(learned)
    grads = {link.name: found[f"grad/{link.name}"] for link in links}
    found |= report.optimizer_metrics(before, exported(links), grads, metrics)
    latents = learned.modelled.latents.detach()
    return found | report.written_back(given, latents), latents


def _learned(workflow: Dreamer, given: Given, carry: Latent, data: str) -> Learned:
    """The losses of the workflow, in which every reconstruction has its own weight."""
    learned = workflow.learned(carry, given.batch(data))
    weights = given.settings.reconstruction_weights
    weighted = [weights[key] * loss for key, loss in learned.modelled.reconstruction.items()]
    learned.losses["reconstruction"] = torch.stack(weighted).sum(0)
    return learned


def _policy_calls(parts: DreamerParts, given: Given) -> Arrays:
    """Successive calls on the first steps of the data, from nothing."""
    policy = DreamerPolicy(parts.encoder, parts.rssm, parts.actor, rngs={"train": None, "eval": None})
    batch_size, length = given.arrays["data/reward"].shape
    carry, actions, deters, stochs = policy.initial(batch_size), [], [], []
    for step in range(min(POLICY_CALLS, length)):
        carry, action, _ = policy.act(carry, given.observation("data", step), mode="train")
        actions.append(action)
        deters.append(carry["deter"])
        stochs.append(carry["stoch"])
    return {
        **given.their_actions("policy/action", torch.stack(actions, 1)),
        "policy/dyn/deter": torch.stack(deters, 1).numpy(),
        "policy/dyn/stoch": torch.stack(stochs, 1).numpy(),
    }


def _after(prefix: str, links: list[Link], parts: DreamerParts, params: Arrays, steps: int) -> Arrays:
    after = exported([*links, *parts.memory_links()])
    if COUNTER in params:
        after[COUNTER] = np.asarray(params[COUNTER] + steps, dtype=params[COUNTER].dtype)
    return {f"{prefix}/{name}": value for name, value in after.items()}


def _plain_names(params: Mapping[str, np.ndarray]) -> Arrays:
    return {name.removeprefix("param/"): value for name, value in params.items()}
