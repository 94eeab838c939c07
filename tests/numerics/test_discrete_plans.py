"""Discrete actions of TD-MPC2: draws, expectations, beliefs, and plans that are made of whole classes."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from small_tdmpc import CLASSES, SEVERAL, STATES, phase, seen, shaken_tdmpc, small_tdmpc, synthetic_batch
from test_mppi import of_one
from test_skipped_updates import NoQuestions, bits
from torch import Tensor, nn

from reverie.components.controllers.action_search import Belief
from reverie.components.controllers.categorical_prior import CategoricalPrior
from reverie.components.controllers.categorical_search import CategoricalSearch
from reverie.components.controllers.mppi import Mppi, PlanNoise
from reverie.components.controllers.policy_prior import GaussianPrior, Worth
from reverie.components.networks.normed import NormedEnsemble
from reverie.components.networks.one_hot import class_indices, one_hot
from reverie.types import ReverieError, Space, Spaces
from reverie.workflows.tdmpc import Tdmpc
from reverie.workflows.tdmpc_records import Transitions

ENVS = 5
ONE, TWO = CLASSES.action, SEVERAL.action
BOTH_KINDS = pytest.mark.parametrize("spaces", [CLASSES, SEVERAL], ids=["one", "several"])
CHANCE = 13.8
"""What chi-square with two degrees of freedom exceeds once in a thousand times."""


def prior_of(space: Space, **given: Any) -> CategoricalPrior:
    """Its latents are its logits."""
    return CategoricalPrior(space=space, latent_dim=space.dim, network=lambda *_: nn.Identity(), **given)


def worth(latent: Tensor, action: Tensor) -> Tensor:
    """Of an action, in which its elements count together."""
    table = torch.tensor([0.3, -1.0, 2.0, 0.5, -0.7])[: action.shape[-1]]
    return (action * table).sum(-1) + (action[..., 0] * action[..., -1] * 1.7) ** 2 + 0.0 * latent[..., 0]


def probabilities(logits: Tensor, unimix: float) -> Tensor:
    return (1 - unimix) * logits.softmax(-1) + unimix / logits.shape[-1]


def test_the_worth_over_classes_is_their_enumeration() -> None:
    """Under the policy that acts, its uniform share included."""
    logits = torch.tensor([[0.2, -0.4, 1.0], [2.0, 0.0, -1.0]])
    prior = prior_of(ONE, unimix=0.1)
    told = prior.worth(logits, prior(logits, torch.full((2, 1), 0.5)), worth)
    each = torch.stack([worth(logits, one_hot(torch.full((2,), number), 3)) for number in range(3)])
    torch.testing.assert_close(told.each, each)
    torch.testing.assert_close(told.mean, (probabilities(logits, 0.1).t() * each).sum(0))


def test_the_worth_of_several_elements_has_no_bias() -> None:
    """Over all actions that may be drawn, weighted by how likely they are."""
    logits = torch.tensor([[0.5, -0.5, 0.1, 1.0, -0.3]])
    prior = prior_of(TWO, unimix=0.0)
    draw = prior(logits, torch.full((1, 2), 0.5))
    first, second = logits[:, :2].softmax(-1), logits[:, 2:].softmax(-1)
    value, exact, singles = torch.zeros(1), torch.zeros(1), []
    for action in itertools.product(range(2), range(3)):
        vector = one_hot(torch.tensor([action]), (2, 3))
        chance = first[:, action[0]] * second[:, action[1]]
        told = prior.worth(logits, draw._replace(action=vector), worth).mean
        value, exact = value + chance * told, exact + chance * worth(logits, vector)
        singles.append(float(told))
    torch.testing.assert_close(value, exact)
    assert len(set(singles)) > 2, "of one draw it is an estimate"


def gradient_of(loss: Tensor, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), logits, retain_graph=True)[0]


@pytest.mark.parametrize("start", [[0.2, -0.4, 1.0], [20.0, 0.0, 0.0]], ids=["unsure", "sure of the wrong class"])
def test_the_policy_is_raised_to_the_best_of_worth_and_entropy(start: list[float]) -> None:
    """Where its gradient is zero, that of the expectation with its bonus is zero too, which alone would stay stuck."""
    logits = torch.tensor([start], requires_grad=True)
    prior, scale, entropy_scale = prior_of(ONE, unimix=0.0, bonus_weight=5.0), torch.tensor(2.0), 0.1

    def parts(given: Tensor) -> tuple[Tensor, Tensor]:
        draw = prior(given, torch.zeros(1, 1))
        told = prior.worth(given, draw, worth)
        direct = told.mean / scale + entropy_scale * draw.bonus
        return prior.gain(draw, told, scale=scale, entropy_scale=entropy_scale), direct

    each = torch.stack([worth(logits, one_hot(torch.tensor([number]), 3)) for number in range(3)], -1)
    best = (each / (2.0 * 0.5)).softmax(-1).detach()
    gain, direct = parts(logits)
    torch.testing.assert_close(gradient_of(gain, logits), best - logits.softmax(-1).detach())
    if start[0] == 20.0:
        assert float(gradient_of(direct, logits).abs().max()) < 1e-4
        assert float(gradient_of(gain, logits).abs().max()) > 0.5
    there = best.log().requires_grad_()
    for one in parts(there):
        assert float(gradient_of(one, there).abs().max()) < 1e-6


def test_slopes_of_the_raised_policy_are_those_of_finite_differences() -> None:
    """In every element of an action, and without any bonus it is raised to the best class."""
    start = torch.tensor([[0.5, -0.5, 0.1, 1.0, -0.3]], requires_grad=True)
    for weight in (0.0, 3.0):
        prior, draw_noise = prior_of(TWO, unimix=0.2, bonus_weight=weight), torch.full((1, 2), 0.5)
        fixed = prior.worth(start, prior(start, draw_noise), worth)

        def gain(given: Tensor, prior: CategoricalPrior = prior, fixed: Worth = fixed) -> Tensor:
            draw = prior(given, torch.full((1, 2), 0.5))
            return prior.gain(draw, fixed, scale=torch.ones(()), entropy_scale=0.1).sum()

        gradient = gradient_of(gain(start), start)
        for place in range(5):
            step = 1e-2 * torch.eye(5)[place]
            slope = (gain(start + step) - gain(start - step)).detach() / 2e-2
            assert float(gradient[0, place]) == pytest.approx(float(slope), abs=1e-3)
    wanted = fixed_best(fixed.each)
    raised = torch.cat([part.softmax(-1) for part in start.detach().split([2, 3], -1)], -1)
    cold = prior_of(TWO, unimix=0.2, bonus_weight=0.0)
    found = gradient_of(
        cold.gain(cold(start, torch.full((1, 2), 0.5)), fixed, scale=torch.ones(()), entropy_scale=0.1), start
    )
    torch.testing.assert_close(found, wanted - raised)


def fixed_best(each: Tensor) -> Tensor:
    """One-hots of the best class of each element."""
    first, second = each.detach().movedim(0, -1).split([2, 3], -1)
    return torch.cat([one_hot(first.argmax(-1), 2), one_hot(second.argmax(-1), 3)], -1)


def test_the_entropy_is_exact_and_the_bonus_weighs_it() -> None:
    logits = torch.tensor([[0.5, -0.5, 0.1, 1.0, -0.3]])
    draw = prior_of(TWO, unimix=0.2, bonus_weight=7.0)(logits, torch.zeros(1, 2))
    parts = [probabilities(logits[:, :2], 0.2), probabilities(logits[:, 2:], 0.2)]
    raw = [logits[:, :2].log_softmax(-1), logits[:, 2:].log_softmax(-1)]
    torch.testing.assert_close(draw.spread, torch.cat(raw, -1))
    torch.testing.assert_close(draw.entropy, sum((-(p * p.log()).sum(-1) for p in parts), torch.zeros(1)))
    torch.testing.assert_close(draw.bonus, 7.0 * draw.entropy)


def chi_square(drawn: Tensor, probs: Tensor) -> float:
    """Of one-hots [..., K]."""
    counts, total = drawn.flatten(0, -2).sum(0), drawn[..., 0].numel()
    return float(((counts - total * probs).square() / (total * probs)).sum())


def test_classes_are_drawn_as_often_as_they_are_likely() -> None:
    rng = torch.Generator().manual_seed(0)
    logits = torch.tensor([0.5, -1.0, 1.0])
    prior, wanted = prior_of(ONE, unimix=0.05), probabilities(logits, 0.05)
    drawn = prior(logits.expand(8000, 3), prior.noise((8000,), rng)).action
    assert bool((drawn.sum(-1) == 1).all())
    assert chi_square(drawn, wanted) < CHANCE
    search, probs = CategoricalSearch(space=ONE), torch.tensor([0.2, 0.1, 0.7])
    belief = Belief(probs.expand(2, 4, 3), torch.zeros(2, 4, 3))
    noise = search.noise((2, 4, 1000), 3, rng)
    assert chi_square(search.drawn(belief, noise), probs) < CHANCE
    near = torch.tensor([0.23, 0.1, 0.67])
    assert chi_square(drawn, probabilities(logits, 0.15)) > 2 * CHANCE, "the test would notice a wrong mixture"
    assert chi_square(search.drawn(belief, noise), near) > 2 * CHANCE


def test_elements_are_drawn_independently() -> None:
    rng = torch.Generator().manual_seed(0)
    search, probs = CategoricalSearch(space=TWO), torch.tensor([0.3, 0.7, 0.2, 0.1, 0.7])
    belief = Belief(probs.expand(1, 1, 5), torch.zeros(1, 1, 5))
    drawn = search.drawn(belief, search.noise((1, 1, 9000), 5, rng))
    together = drawn[..., :2].unsqueeze(-1) * drawn[..., 2:].unsqueeze(-2)
    torch.testing.assert_close(
        together.mean((0, 1, 2)), probs[:2].unsqueeze(-1) * probs[2:].unsqueeze(-2), atol=0.02, rtol=0
    )


def test_a_belief_is_the_weighted_frequency_above_a_floor() -> None:
    search = CategoricalSearch(space=TWO, uniform_share=0.06)
    elites = one_hot(torch.tensor([[0, 2], [0, 1], [1, 2]]), (2, 3)).view(1, 1, 3, 5)
    score = torch.tensor([[0.5, 0.3, 0.2]])
    learned = search.learned(elites, score)
    wanted = torch.tensor([0.94 * 0.8 + 0.03, 0.94 * 0.2 + 0.03, 0.02, 0.94 * 0.3 + 0.02, 0.94 * 0.7 + 0.02])
    torch.testing.assert_close(learned.mean[0, 0], wanted)
    torch.testing.assert_close(learned.std, (learned.mean * (1 - learned.mean)).sqrt())
    # However often it learns from one class, the others keep their part.
    alone = search.learned(elites[:, :, :1], torch.ones(1, 1)).mean[0, 0]
    torch.testing.assert_close(alone, torch.tensor([0.97, 0.03, 0.02, 0.02, 0.96]))


@BOTH_KINDS
def test_a_plan_begins_one_step_after_the_last_one_and_halfway_to_uniform(spaces: Spaces) -> None:
    workflow = shaken_tdmpc(spaces=spaces)
    planner, latent, previous, noise = planned(workflow)
    begun = planner(workflow.model, latent, previous, noise).begun.mean
    uniform = torch.cat([torch.full((part,), 1 / part) for part in counts(spaces)])
    torch.testing.assert_close(begun[:-1], 0.5 * previous[1:] + 0.5 * uniform)
    torch.testing.assert_close(begun[-1], uniform.expand_as(begun[-1]))
    fresh = planner(workflow.model, latent, torch.zeros_like(previous), noise).begun.mean
    torch.testing.assert_close(fresh, uniform.expand_as(fresh))


def counts(spaces: Spaces) -> list[int]:
    classes = spaces.action.classes
    assert classes is not None
    return [classes] if isinstance(classes, int) else list(classes)


def planned(workflow: Tdmpc) -> tuple[Mppi, Tensor, Tensor, PlanNoise]:
    """A planner, latents, probabilities of earlier plans, and noise for all environments."""
    rng, model = torch.Generator().manual_seed(3), workflow.model
    latent = torch.rand(ENVS, 16, generator=rng)
    parts = [torch.rand(3, ENVS, part, generator=rng).softmax(-1) for part in counts(workflow._context.spaces)]
    planner = workflow._planner
    return planner, latent, torch.cat(parts, -1), planner.noise(ENVS, model, rng, is_greedy=False)


@torch.no_grad()
@BOTH_KINDS
@pytest.mark.parametrize("episodic", ["true", "false"])
def test_plans_for_many_environments_are_those_for_each_alone(episodic: str, spaces: Spaces) -> None:
    workflow = shaken_tdmpc(f"workflow.episodic={episodic}", spaces=spaces)
    planner, latent, previous, noise = planned(workflow)
    together = planner(workflow.model, latent, previous, noise)
    for env in range(ENVS):
        here = slice(env, env + 1)
        alone = planner(workflow.model, latent[here], previous[:, here], of_one(noise, env))
        assert torch.equal(together.action[here], alone.action)
        torch.testing.assert_close(together.mean[:, here], alone.mean, rtol=1e-4, atol=1e-5)
    first = together.steps[0].mean.transpose(0, 1).flatten(1).round(decimals=3)
    assert len({tuple(row) for row in first.tolist()}) > 1  # in the end they may agree


@torch.no_grad()
@BOTH_KINDS
def test_plans_are_made_of_whole_actions_and_improve(spaces: Spaces) -> None:
    workflow = shaken_tdmpc(size=0.5, spaces=spaces)
    planner, latent, previous, noise = planned(workflow)
    made = planner(workflow.model, latent, previous, noise)
    for step in made.steps:
        assert set(step.actions.unique().tolist()) == {0.0, 1.0}
        for part, belief in zip(
            step.actions.split(counts(spaces), -1), step.mean.split(counts(spaces), -1), strict=True
        ):
            assert bool((part.sum(-1) == 1).all())
            torch.testing.assert_close(belief.sum(-1), torch.ones(3, ENVS))
            assert float(belief.min()) >= 0.05 / part.shape[-1] - 1e-6
    assert float(made.steps[-1].returns.mean()) > float(made.steps[0].returns.mean())


def test_evaluations_take_the_likeliest_action_and_training_explores() -> None:
    belief = Belief(torch.tensor([[[0.2, 0.5, 0.3]]]).expand(3, 4000, 3), torch.zeros(()))
    action = one_hot(torch.full((4000,), 2), 3)
    for share, wanted in ((0.0, [0.0, 0.0, 1.0]), (0.3, [0.1, 0.1, 0.8]), (1.0, [1 / 3] * 3)):
        search = CategoricalSearch(space=ONE, uniform_share=share, fresh_share=1.0)
        noise = search.noise((4000,), 3, torch.Generator().manual_seed(0))
        taken = search.final(belief, action, noise)
        assert bool((taken.sum(-1) == 1).all())
        torch.testing.assert_close(taken.mean(0), torch.tensor(wanted), atol=0.025, rtol=0)
        assert torch.equal(search.final(belief, action, None), one_hot(torch.ones(4000), 3))


@BOTH_KINDS
def test_vectors_are_one_hots_and_go_back(spaces: Spaces) -> None:
    action = synthetic_batch(spaces=spaces).action
    prior = small_tdmpc(spaces=spaces).model.prior
    vector = prior.vector(action)
    assert vector.shape == (4, 4, spaces.action.dim)
    assert torch.equal(prior.native(vector), action)
    classes = spaces.action.classes
    assert classes is not None
    assert torch.equal(class_indices(torch.zeros(spaces.action.dim), classes), torch.zeros(spaces.action.shape).long())


@BOTH_KINDS
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_acting_gives_actions_of_the_space_and_asks_the_device_nothing(mode: Any, spaces: Spaces) -> None:
    workflow = shaken_tdmpc("workflow.episodic=true", spaces=spaces)
    vector = torch.rand(30, 4)
    vector[1, 2] = float("nan")
    for name in (None, "policy"):
        policy = workflow.policy(name)
        with NoQuestions():
            carry, action, _ = policy.act(policy.initial(30), seen({"vector": vector}), mode=mode)
        assert (action.dtype, action.shape) == (torch.int64, (30, *spaces.action.shape))
        for index, count in zip(action.view(30, -1).unbind(-1), counts(spaces), strict=True):
            assert bool(((index >= 0) & (index < count)).all())
        assert all(bool(value.isfinite().all()) for value in carry.values())


@BOTH_KINDS
def test_every_part_learns_and_the_device_is_asked_nothing(spaces: Spaces) -> None:
    workflow, batch = shaken_tdmpc("workflow.episodic=true", spaces=spaces, size=1.0), synthetic_batch(spaces=spaces)
    rows = Transitions.of(
        batch, workflow._prior.vector, lambda obs: None
    )  # whose classes are checked where the processor has them
    before = {name: bits(one.state_dict()) for name, one in workflow.modules().items()}
    with NoQuestions():
        metrics, _, _ = workflow.learn(rows, workflow._drawn(rows), progress=phase().progress)
    after = {name: bits(one.state_dict()) for name, one in workflow.modules().items()}
    assert all(value.isfinite() for value in metrics.values())
    assert {name for name in before if before[name] != after[name]} == before.keys()


def test_targets_expect_the_smaller_value_of_two_critics() -> None:
    """The smaller one for each class, as a drawn action would be judged, and then the mean over the classes."""
    workflow = shaken_tdmpc(spaces=CLASSES, size=0.5)
    seen_rows = Transitions.of(synthetic_batch(spaces=CLASSES), workflow._prior.vector, lambda obs: None)
    noise = workflow._drawn(seen_rows)
    latents, targets = workflow._targets(seen_rows, noise)
    prior = workflow._prior
    with torch.no_grad():
        probs = 0.99 * prior(latents, noise.target_action).spread.exp() + 0.01 / 3
        each = [one_hot(torch.full(latents.shape[:-1], number), 3) for number in range(3)]
        values = [workflow.target_critic(latents, one).mean()[noise.target_pair].amin(0) for one in each]
    expected = (probs * torch.stack(values, -1)).sum(-1)
    wanted = seen_rows.reward + workflow._discount * (1 - seen_rows.is_terminal) * expected
    torch.testing.assert_close(targets, wanted)
    other = workflow._targets(seen_rows, replace(noise, target_action=1 - noise.target_action))[1]
    assert torch.equal(targets, other), "nothing is drawn"


def test_all_classes_are_judged_under_one_dropout() -> None:
    torch.manual_seed(0)
    ensemble = NormedEnsemble(5, 3, members=2, layers=1, units=6, dropout=0.5)
    with torch.no_grad():
        for parameter in ensemble.parameters():
            parameter += torch.randn_like(parameter)
    x = torch.randn(4, 7, 2, 5)
    keep = ensemble.drawn_dropout(14, torch.Generator().manual_seed(0), members=2)
    together = ensemble(x, keep=keep)
    torch.testing.assert_close(together, torch.stack([ensemble(one, keep=keep) for one in x], 1))
    assert not torch.allclose(together, ensemble(x))


def test_one_file_serves_both_kinds_of_action() -> None:
    assert isinstance(small_tdmpc(spaces=STATES).model.prior, GaussianPrior)
    settings = ("controller.policy.discrete.bonus_weight=3", "controller.planner.search.discrete.uniform_share=0.3")
    workflow = small_tdmpc(*settings, spaces=CLASSES)
    prior = workflow.model.prior
    assert isinstance(prior, CategoricalPrior)
    draw = prior(torch.zeros(1, 16), torch.zeros(1, 1))
    torch.testing.assert_close(draw.bonus, 3 * draw.entropy)
    learned = workflow._planner.search.learned(torch.tensor([1.0, 0.0, 0.0]).view(1, 1, 1, 3), torch.ones(1, 1))
    torch.testing.assert_close(learned.mean.view(3), torch.tensor([0.8, 0.1, 0.1]))


def test_refusals() -> None:
    latent = {"latent_dim": 4, "network": lambda *_: nn.Identity()}
    for made in (partial(CategoricalPrior, **latent), CategoricalSearch):
        with pytest.raises(ReverieError, match="needs discrete actions, but the task's are numbers"):
            made(space=STATES.action)
    with pytest.raises(ReverieError, match="needs actions that are vectors of numbers, but the task's are discrete"):
        GaussianPrior(space=ONE, **latent)
    with pytest.raises(ReverieError, match="unimix of the policy"):
        small_tdmpc("controller.policy.discrete.unimix=2", spaces=CLASSES)
    with pytest.raises(ReverieError, match="fresh_share of the search"):
        small_tdmpc("controller.planner.search.discrete.fresh_share=0.01", spaces=CLASSES)
    with pytest.raises(ReverieError, match=r"controller\.policy\.discrete\.min_log_std"):
        small_tdmpc("+controller.policy.discrete.min_log_std=1", spaces=CLASSES)
    with pytest.raises(ReverieError, match=r"`controller\.policy\.latent_dim` must be an integer"):
        small_tdmpc("controller.policy.latent_dim=wide", spaces=CLASSES)
