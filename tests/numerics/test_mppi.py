"""Plans: each environment its own, begun where the last one was, forgotten with an episode, and as good as they say."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_tdmpc import BOTH, PICTURES, STATES, seen, shaken_tdmpc, small_tdmpc
from test_skipped_updates import NoQuestions
from torch import Tensor

from reverie.components.controllers.mppi import Mppi, PlanNoise
from reverie.components.networks.latent_encoder import shifted
from reverie.types import ReverieError, Space, Spaces
from reverie.workflows.tdmpc import Tdmpc

ENVS = 5


def planned(workflow: Tdmpc) -> tuple[Mppi, Tensor, Tensor, PlanNoise]:
    """A planner, latents, means of earlier plans, and noise for all environments."""
    rng, model = torch.Generator().manual_seed(3), workflow.model
    latent = torch.rand(ENVS, 16, generator=rng)
    previous = torch.rand(3, ENVS, 2, generator=rng) - 0.5
    planner = workflow._planner
    return planner, latent, previous, planner.noise(ENVS, model, rng, is_greedy=False)


def of_one(noise: PlanNoise, env: int) -> PlanNoise:
    here = slice(env, env + 1)
    assert noise.action is not None
    return replace(
        noise,
        proposed=noise.proposed[:, here],
        drawn=noise.drawn[:, :, here],
        last_action=noise.last_action[:, here],
        choice=noise.choice[here],
        action=noise.action[here],
    )


@torch.no_grad()
@pytest.mark.parametrize("episodic", ["true", "false"])
def test_plans_for_many_environments_are_those_for_each_alone(episodic: str) -> None:
    workflow = shaken_tdmpc(f"workflow.episodic={episodic}")
    planner, latent, previous, noise = planned(workflow)
    together = planner(workflow.model, latent, previous, noise)
    for env in range(ENVS):
        here = slice(env, env + 1)
        alone = planner(workflow.model, latent[here], previous[:, here], of_one(noise, env))
        torch.testing.assert_close(together.action[here], alone.action, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(together.mean[:, here], alone.mean, rtol=1e-4, atol=1e-5)
    assert len({tuple(row) for row in together.action.tolist()}) == ENVS


@torch.no_grad()
def test_a_plan_begins_one_step_after_the_last_one() -> None:
    workflow = shaken_tdmpc()
    planner, latent, previous, noise = planned(workflow)
    begun = planner(workflow.model, latent, previous, noise).begun
    assert torch.equal(begun.mean[:-1], previous[1:])
    assert not begun.mean[-1].any()
    assert bool((begun.std == 2.0).all())


def test_the_carry_is_the_mean_and_a_new_episode_forgets_it() -> None:
    workflow = shaken_tdmpc()
    policy, obs = workflow.policy(None), {"vector": torch.rand(3, 4)}
    carry, _, stored = policy.act(policy.initial(3), seen(obs), mode="eval")
    assert carry["mean"].shape == (3, 3, 2)
    assert stored == {}
    state = workflow._context.rng.get_state()
    results = []
    for first in ([False, False, False], [False, True, False]):
        workflow._context.rng.set_state(state)
        results.append(policy.act(carry, seen(obs, is_first=torch.tensor(first)), mode="eval")[0]["mean"])
    assert torch.equal(results[0][[0, 2]], results[1][[0, 2]])
    assert not torch.equal(results[0][1], results[1][1])
    workflow._context.rng.set_state(state)
    empty = {"mean": torch.zeros_like(carry["mean"])}
    fresh = policy.act(empty, seen(obs, is_first=torch.tensor([True] * 3)), mode="eval")[0]["mean"]
    assert torch.equal(fresh[1], results[1][1])


@torch.no_grad()
def test_only_training_adds_noise() -> None:
    workflow = shaken_tdmpc()
    planner, latent, previous, noise = planned(workflow)
    noisy = planner(workflow.model, latent, previous, noise)
    greedy = planner(workflow.model, latent, previous, replace(noise, action=None))
    assert torch.equal(noisy.mean, greedy.mean)
    assert not torch.equal(noisy.action, greedy.action)
    last = greedy.steps[-1]
    for env in range(ENVS):
        sample = last.elite_index[env, greedy.chosen[env]]
        assert torch.equal(greedy.action[env], last.actions[0, env, sample])
    drawn = [
        workflow._planner.noise(1, workflow.model, torch.Generator(), is_greedy=one).action for one in (True, False)
    ]
    assert drawn[0] is None
    assert drawn[1] is not None


@torch.no_grad()
def test_the_best_plans_are_kept_and_improve() -> None:
    workflow = shaken_tdmpc(size=0.5)
    planner, latent, previous, noise = planned(workflow)
    made = planner(workflow.model, latent, previous, noise)
    for step in made.steps:
        assert torch.equal(step.elite_returns, step.returns.sort(1, descending=True).values[:, :8])
        torch.testing.assert_close(step.score.sum(1), torch.ones(ENVS))
        assert bool((step.std >= 0.05).all() and (step.std <= 2.0).all())
        assert float(step.actions.abs().max()) <= 1.0
        assert torch.equal(step.actions[:, :, :4], made.steps[0].actions[:, :, :4])  # the policy's, drawn once
    assert float(made.steps[-1].elite_returns.mean()) > float(made.steps[0].returns.mean())


def end_sometimes(workflow: Tdmpc, latent: Tensor) -> None:
    """Shaken weights say the same of all latents."""
    rng = torch.Generator().manual_seed(5)
    actions = torch.rand(200, ENVS, 2, generator=rng) * 2 - 1
    head = workflow.model.termination_head
    once = workflow.model.dynamics(latent.expand(200, -1, -1), actions)
    logits = head.logit(workflow.model.dynamics(once, actions))
    next(one for name, one in head.named_parameters() if name.endswith("2.bias")).sub_(logits.median())


@torch.no_grad()
def test_the_worth_of_a_plan_is_its_definition() -> None:
    """Step by step, for one sample, with an end that stops everything after it."""
    workflow = shaken_tdmpc("workflow.episodic=true")
    planner, latent, previous, noise = planned(workflow)
    end_sometimes(workflow, latent)
    step, model = planner(workflow.model, latent, previous, noise).steps[0], workflow.model
    ended = 0
    for env in range(ENVS):
        for sample in range(20):
            state, total, live = latent[env : env + 1], 0.0, 1.0
            for depth in range(3):
                action = step.actions[depth, env, sample : sample + 1]
                total += live * model.discount**depth * float(model.reward_head(state, action).mean())
                state = model.dynamics(state, action)
                live *= float(model.termination_head(state).mean() <= 0.5)
            action = model.prior(state, noise.last_action[0, env, sample : sample + 1]).action
            values = model.critic(state, action).mean()[noise.pairs[0]]
            ended += live == 0.0
            total += live * model.discount**3 * float(values.mean())
            assert float(step.returns[env, sample]) == pytest.approx(total, rel=1e-3, abs=1e-3)
    assert 0 < ended < 20 * ENVS


@pytest.mark.parametrize("spaces", [STATES, BOTH], ids=["states", "both"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_acting_asks_the_device_nothing(mode: str, spaces: Spaces) -> None:
    workflow = shaken_tdmpc("workflow.episodic=true", spaces=spaces)
    obs = {"vector": torch.rand(2, 4), "image": torch.randint(256, (2, 40, 40, 3), dtype=torch.uint8)}
    for name in (None, "policy"):
        policy = workflow.policy(name)
        with NoQuestions():
            policy.act(policy.initial(2), seen({key: obs[key] for key in spaces.obs}), mode=mode)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_plan_outlives_a_bad_observation(bad: float) -> None:
    workflow = shaken_tdmpc()
    vector = torch.rand(2, 4)
    vector[1, 2] = bad
    for name in (None, "policy"):
        policy = workflow.policy(name)
        carry, action, _ = policy.act(policy.initial(2), seen({"vector": vector}), mode="train")
        assert bool(action.isfinite().all())
        assert all(bool(value.isfinite().all()) for value in carry.values())


def test_acting_without_planning_is_the_policy() -> None:
    workflow = shaken_tdmpc("workflow.plans=false")
    obs = {"vector": torch.rand(3, 4)}
    one, other = workflow.policy(None), workflow.policy("policy")
    assert one is other
    greedy = [one.act({}, seen(obs), mode="eval")[1] for _ in range(2)]
    assert torch.equal(*greedy)
    latent = workflow.modules()["encoder"](obs, {})
    noise = torch.zeros(3, 2)
    torch.testing.assert_close(greedy[0], workflow.model.prior(latent, noise).mode.detach())
    drawn = [one.act({}, seen(obs), mode="train")[1] for _ in range(2)]
    assert not torch.equal(*drawn)
    assert shaken_tdmpc().policy(None) is not None


def test_large_actions_get_more_iterations() -> None:
    twenty = Spaces(obs=STATES.obs, action=Space(shape=(20,), dtype="float32"))
    counts = []
    for spaces in (STATES, twenty):
        workflow = small_tdmpc(spaces=spaces)
        noise = workflow._planner.noise(1, workflow.model, torch.Generator(), is_greedy=True)
        counts.append(len(noise.drawn))
    assert counts == [4, 6]


def test_a_shift_moves_a_picture_and_repeats_its_border() -> None:
    picture = torch.arange(2 * 5 * 5 * 1, dtype=torch.uint8).view(2, 5, 5, 1)
    shift = torch.tensor([[2, 2], [4, 1]])  # not at all; two down and one to the left
    moved = shifted(picture, shift, margin=2)
    assert torch.equal(moved[0], picture[0])
    assert torch.equal(moved[1, :3, 1:, 0], picture[1, 2:, :-1, 0])
    assert torch.equal(moved[1, 3:, 1:, 0], picture[1, 4:, :-1, 0].expand(2, -1))
    assert torch.equal(moved[1, :3, 0, 0], picture[1, 2:, 0, 0])


def test_shifts_are_drawn_in_acting_too_and_none_without_a_margin() -> None:
    rng = torch.Generator().manual_seed(0)
    encoder = small_tdmpc(spaces=PICTURES)._encoder
    drawn = encoder.shift((400,), rng)["image"]
    assert sorted(drawn.unique().tolist()) == list(range(7))
    still = small_tdmpc("components.encoder.images.margin=0", spaces=PICTURES)._encoder
    assert not still.shift((400,), rng)["image"].any()
    assert small_tdmpc()._encoder.shift((400,), rng) == {}


def test_refusals() -> None:
    for setting, word in (("elites=33", "elites"), ("samples=1", "samples"), ("horizon=0", "horizon")):
        with pytest.raises(ReverieError, match=word):
            small_tdmpc(f"controller.planner.{setting}")
    with pytest.raises(ReverieError, match="max_std of the search"):
        small_tdmpc("controller.planner.search.continuous.max_std=0.01")
    with pytest.raises(ReverieError, match=r"`controller\.critic` cannot act"):
        small_tdmpc().policy("critic")
