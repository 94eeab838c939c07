"""TD-MPC with its eyes closed, against rollouts written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_tdmpc import BOTH, PICTURES, STATES, shaken_tdmpc, synthetic_batch
from test_tdmpc_probe import MIXED, NONE, one_of
from torch import Generator, Tensor

from reverie.orchestration.model_health import model_health
from reverie.types import Batch, Spaces
from reverie.workflows.open_loop import PredictsOpenLoop
from reverie.workflows.plans import Plans, ShowsPlans
from reverie.workflows.tdmpc import Tdmpc

EPISODIC = "workflow.episodic=true"
LENGTH, SEEN = 9, 3


def unbroken_batch(spaces: Spaces = STATES) -> Batch:
    batch = synthetic_batch(length=LENGTH, spaces=spaces)
    batch.is_last.zero_()
    batch.is_terminal.zero_()
    return batch


def seen_rows(*more: int) -> Tensor:
    is_context = torch.zeros(4, LENGTH, dtype=torch.bool)
    is_context[:, [*range(SEEN), *more]] = True
    return is_context


def encoded(workflow: Tdmpc, obs: dict[str, Tensor]) -> Tensor:
    """Without a shift."""
    shift = {"image": torch.full((*next(iter(obs.values())).shape[:1], 2), 3)} if "image" in obs else {}
    return workflow._encoder(obs, shift)


@torch.no_grad()
def by_hand(workflow: Tdmpc, batch: Batch, is_context: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Latents [B, T, D], and rewards and chances to go on [B, T], row by row and sequence by sequence."""
    model, latents, rewards, lives = workflow.model, [], [], []
    for sequence in range(4):
        for row in range(LENGTH):
            obs = {key: value[sequence, row][None] for key, value in batch.obs.items()}
            if row and not batch.is_first[sequence, row]:
                before, action = latents[-1], batch.action[sequence, row - 1][None]
                rewards.append(model.reward_head(before, action).mean())
            else:
                rewards.append(batch.reward[sequence, row][None])
            if is_context[sequence, row]:
                latents.append(encoded(workflow, obs))
            else:
                latents.append(model.dynamics(latents[-1], batch.action[sequence, row - 1][None]))
            lives.append(1 - model.termination_head(latents[-1]).mean())
    return tuple(torch.stack(one).view(4, LENGTH, *one[0].shape[1:]) for one in (latents, rewards, lives))


@pytest.mark.parametrize("spaces", [STATES, PICTURES, BOTH, MIXED], ids=["states", "pictures", "both", "mixed"])
def test_an_open_loop_is_the_rollout_written_out(spaces: Spaces) -> None:
    workflow, batch = shaken_tdmpc(EPISODIC, spaces=spaces, size=0.5), unbroken_batch(spaces)
    batch.is_first[1, 6] = True
    is_context = seen_rows()
    is_context[1, 6] = True
    assert isinstance(workflow, PredictsOpenLoop)
    found = workflow.open_loop(batch, is_context=is_context)
    latents, rewards, lives = by_hand(workflow, batch, is_context)
    torch.testing.assert_close(found.reward, rewards)
    torch.testing.assert_close(found.live, lives)
    assert torch.equal(found.real_reward, batch.reward)
    assert found.discount == workflow.model.discount
    real = torch.stack([encoded(workflow, {k: v[:, row] for k, v in batch.obs.items()}) for row in range(LENGTH)], 1)
    assert found.latent_error is not None
    torch.testing.assert_close(found.latent_error, (latents - real).square().mean(-1).detach(), atol=1e-6, rtol=1e-4)
    assert bool((found.latent_error[is_context] < 1e-10).all())
    assert bool((found.latent_error[~is_context] > 1e-8).all())
    assert found.obs.keys() == spaces.obs.keys()
    for key, value in found.obs.items():
        assert value.shape == batch.obs[key].shape
    probe: Any = workflow.modules()["probe"]
    for key in ("vector", "image"):
        if key in spaces.obs:
            torch.testing.assert_close(found.obs[key], probe(latents)[key].mean().detach(), rtol=1e-3, atol=1e-4)
    assert found.why_blind is None


def test_later_observations_and_the_last_action_count_for_nothing() -> None:
    workflow, batch = shaken_tdmpc(), unbroken_batch()
    before = workflow.open_loop(batch, is_context=seen_rows())
    batch.obs["vector"][:, SEEN:] += 1.0
    batch.action[:, -1] = 0.0
    after = workflow.open_loop(batch, is_context=seen_rows())
    assert torch.equal(before.obs["vector"], after.obs["vector"])
    assert torch.equal(before.reward, after.reward)
    batch.obs["vector"][:, SEEN - 1] += 1.0
    assert not torch.equal(
        before.obs["vector"][:, SEEN:], workflow.open_loop(batch, is_context=seen_rows()).obs["vector"][:, SEEN:]
    )


def test_without_a_probe_rewards_and_latents_are_still_measured() -> None:
    batch, lead = unbroken_batch(), (torch.arange(LENGTH) - SEEN + 1).clamp(min=0).expand(4, -1)
    blind = shaken_tdmpc(NONE).open_loop(batch, is_context=seen_rows())
    assert blind.obs == {}
    assert "`components.probe` is null" in (blind.why_blind or "")
    health = model_health(batch, blind.cpu(), lead, STATES)
    assert {"latent_error_1", "latent_error_5", "reward_error", "return_error", "continue_brier"} <= health.keys()
    assert not any(name.startswith("vector_error") for name in health)
    assert health["latent_error_5"] == pytest.approx(float(blind.latent_error[:, SEEN + 4].mean()))  # pyright: ignore
    assert health["continue_predicted"] == 1.0, "ends are not learned here"


def shown(workflow: Tdmpc, episode: Batch, *, moments: int = 3, count: int = 3) -> Plans:
    assert isinstance(workflow, ShowsPlans)
    found = workflow.plans(episode, moments=moments, shown=count)
    assert found is not None
    return found


@torch.no_grad()
def planned_by_hand(workflow: Tdmpc, episode: Batch, row: int, others: list[int]) -> Any:
    """Plan at ``row`` as the agent does: from the plan of the row before, from that before it, three in all.

    ``others`` are rows planned for beside it, because all draw from one stream.
    """
    planner, model, rng = workflow._planner, workflow.model, Generator().manual_seed(0)
    rows = others
    mean = torch.zeros(planner.horizon, len(rows), 2)
    plan: Any = None
    for back in (3, 2, 1, 0):
        now = [max(0, one - back) for one in rows]
        for place, one in enumerate(rows):
            if one - back <= 0:
                mean[:, place] = 0
        noise = planner.noise(len(rows), model, rng, is_greedy=True)
        latent = encoded(workflow, {key: value[0, now] for key, value in episode.obs.items()})
        plan = planner(model, latent, mean, noise)
        mean = plan.mean.clone()
    return plan.steps[-1], rows.index(row)


@pytest.mark.parametrize("overrides", [(), (EPISODIC,)], ids=["endless", "episodic"])
def test_plans_are_those_of_the_planner_and_what_they_lead_to(overrides: tuple[str, ...]) -> None:
    workflow, episode = shaken_tdmpc(*overrides, size=0.5), one_of(unbroken_batch())
    found = shown(workflow, episode)
    assert found.row.tolist() == [0, 2, 5]
    assert found.rank[0] == 0
    model, probe = workflow.model, workflow.modules()["probe"]
    step, place = planned_by_hand(workflow, episode, 5, [0, 2, 5])
    torch.testing.assert_close(found.worth[2], step.elite_returns[place, found.rank])
    assert bool((found.worth[:, :-1] >= found.worth[:, 1:]).all())
    for number, rank in enumerate(found.rank.tolist()):
        actions = step.actions[:, place, step.elite_index[place, rank]]
        latent, live = encoded(workflow, {"vector": episode.obs["vector"][0, 5:6]}), 1.0
        for ahead in range(3):
            expected: Any = probe(latent)["vector"]
            torch.testing.assert_close(found.obs["vector"][2, number, ahead], expected.mean()[0].detach())
            reward = model.reward_head(latent, actions[ahead : ahead + 1]).mean() * live
            torch.testing.assert_close(found.reward[2, number, ahead], reward[0].detach())
            latent = model.dynamics(latent, actions[ahead : ahead + 1])
            if model.termination_head.is_learned:
                live = live * float(model.termination_head(latent).mean() <= 0.5)
    assert torch.equal(found.real_reward, episode.reward[0])


def test_pictures_of_plans_have_the_shape_of_pictures() -> None:
    found = shown(shaken_tdmpc(spaces=BOTH), one_of(unbroken_batch(BOTH)), moments=16, count=4)
    moments, plans = 6, len(found.rank)
    assert found.row.tolist() == list(range(moments)), "every row from which a plan fits into the episode"
    assert found.obs["image"].shape == (moments, plans, 4, 40, 40, 3)
    assert found.obs["vector"].shape == (moments, plans, 4, 4)
    assert found.reward.shape == (moments, plans, 3)
    assert not found.reward.requires_grad


def test_who_does_not_plan_has_no_plans_to_show() -> None:
    episode = one_of(unbroken_batch())
    assert shaken_tdmpc("workflow.plans=false").plans(episode, moments=3, shown=3) is None
    short = one_of(synthetic_batch(length=3))
    assert shaken_tdmpc().plans(short, moments=3, shown=3) is None
    assert shown(shaken_tdmpc(NONE), episode).obs == {}
