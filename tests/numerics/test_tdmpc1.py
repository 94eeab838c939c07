"""The first TD-MPC: its update and its plans against the same computed by hand from the weights, and its schedules."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small_tdmpc import CPU, STATES, phase, shaken_tdmpc, small_tdmpc, synthetic_batch
from test_compiled_updates import traced
from test_skipped_updates import NoQuestions, bits
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.commands.composition import composed
from reverie.components.controllers.action_search import Belief
from reverie.components.controllers.deterministic_prior import DeterministicPrior
from reverie.components.controllers.momentum_search import MomentumSearch
from reverie.components.controllers.mppi import Mppi, PlanNoise
from reverie.components.controllers.q_ensemble import QEnsemble
from reverie.components.controllers.schedules import LinearSchedule
from reverie.components.networks.elu import EluEnsemble, EluMlp
from reverie.configuration import plain
from reverie.rehearsal import rehearsal
from reverie.types import ReverieError
from reverie.workflows.base import weighted_sum
from reverie.workflows.tdmpc import Tdmpc
from reverie.workflows.tdmpc_records import Transitions, UpdateNoise

FIRST = ("components=tdmpc1", "controller=tdmpc1", "workflow=tdmpc1")
NAN = float("nan")


def linears(network: nn.Module, x: Tensor) -> Tensor:
    *hidden, last = [one for one in network.modules() if isinstance(one, nn.Linear)]
    for layer in hidden:
        x = F.elu(x @ layer.weight.T + layer.bias)
    return x @ last.weight.T + last.bias


def q(critic: QEnsemble, member: int, latent: Tensor, action: Tensor) -> Tensor:
    network = critic.network
    assert isinstance(network, EluEnsemble)
    weight, bias = [one[member] for one in network.weight], [one[member] for one in network.bias]
    x = torch.cat([latent, action], -1) @ weight[0].T + bias[0]
    x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    x = (x * network.norm_weight[member] + network.norm_bias[member]).tanh()
    x = F.elu(x @ weight[1].T + bias[1])
    return (x @ weight[2].T + bias[2]).squeeze(-1)


def drawn(workflow: Tdmpc, latent: Tensor, noise: Tensor) -> Tensor:
    action = linears(workflow.model.prior.network, latent).tanh() + (0.05 * noise).clamp(-0.3, 0.3)  # pyright: ignore[reportArgumentType]
    return action.clamp(-1 + 1e-6, 1 - 1e-6)


def smaller(critic: QEnsemble, latent: Tensor, action: Tensor) -> Tensor:
    return torch.minimum(q(critic, 0, latent, action), q(critic, 1, latent, action))


def recipe(workflow: Tdmpc, seen: Transitions, noise: UpdateNoise) -> tuple[Tensor, Tensor, list[Tensor]]:
    """(the loss, priorities [B], the latents of the rollout), sequence by sequence as the published code has it."""
    modules, critic = workflow.modules(), workflow.model.critic
    slow = workflow._target.slow("encoder", workflow._encoder)
    assert seen.weight is not None
    total, priority = torch.zeros(()), torch.zeros(seen.reward.shape[1])
    latent = linears(modules["encoder"], seen.obs["vector"][0])
    latents = [latent]
    steps = len(seen.reward)
    for t in range(steps):
        known = linears(modules["encoder"], seen.obs["vector"][t + 1]).detach()
        goal = linears(slow, seen.obs["vector"][t + 1]).detach()
        action = drawn(workflow, known, noise.target_action[t]).detach()
        value = smaller(workflow.target_critic, known, action)
        target = (seen.reward[t] + 0.99 * (1 - seen.is_terminal[t]) * value).detach()
        values = [q(critic, member, latent, seen.action[t]) for member in range(2)]
        both = torch.cat([latent, seen.action[t]], -1)
        reward = linears(modules["reward_head"], both).squeeze(-1)
        latent = linears(modules["dynamics"], both)
        latents.append(latent)
        loss = 2.0 * (latent - goal).square().mean(1) + 0.5 * (reward - seen.reward[t]).square()
        loss = loss + 0.1 * sum((value - target).square() for value in values)
        total = total + 0.5**t * (loss * seen.weight).mean()
        priority = priority + 0.5**t * sum((value - target).abs() for value in values).detach()
    return total / steps, priority, latents


def seen_and_drawn(workflow: Tdmpc) -> tuple[Transitions, UpdateNoise]:
    batch = replace(synthetic_batch(length=6), weight=torch.tensor([1.0, 0.3, 0.7, 0.5]))
    seen = Transitions.of(batch, workflow.model.prior.vector, workflow._encoder.action_mask)
    return seen, workflow._drawn(seen)


def test_an_update_is_that_of_the_published_code() -> None:
    workflow = shaken_tdmpc(*FIRST)
    seen, noise = seen_and_drawn(workflow)
    with torch.no_grad():
        next_latents, targets = workflow._targets(seen, noise)
    ours = workflow.modelled(seen, next_latents, targets, noise)
    loss = weighted_sum(ours.losses, workflow._config.loss_weights)
    expected, priority, latents = recipe(workflow, seen, noise)
    torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(ours.surprise, priority, rtol=1e-4, atol=1e-5)
    names = ("encoder", "dynamics", "reward_head", "critic")
    parameters = [one for name in names for one in workflow.modules()[name].parameters()]
    gradients = [torch.autograd.grad(one, parameters, materialize_grads=True) for one in (loss, expected)]
    assert all(one.abs().max() > 0 for one in gradients[0])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)
    improved = workflow.improved(ours.latents.detach(), noise).loss
    raised = torch.zeros(())
    for t, latent in enumerate(latents):
        value = smaller(
            workflow.model.critic, latent.detach(), drawn(workflow, latent.detach(), noise.policy_action[t])
        )
        raised = raised - 0.5**t * value.mean()
    torch.testing.assert_close(improved * len(latents), raised, rtol=1e-4, atol=1e-6)


def test_weights_make_sequences_count_less() -> None:
    """A weight of zero is a sequence that is not there; without weights all count alike."""
    batch, other = synthetic_batch(), synthetic_batch()
    other.reward[2] += 3.0
    for weight, is_same in ((torch.tensor([1.0, 1.0, 0.0, 1.0]), True), (torch.ones(4), False), (None, False)):
        one, two = (
            shaken_tdmpc(*FIRST).update(replace(given, weight=weight), phase=phase()).metrics
            for given in (batch, other)
        )
        assert (one["loss/reward"] == two["loss/reward"]).item() == is_same
        assert (one["loss/value"] == two["loss/value"]).item() == is_same


def plan_by_hand(
    workflow: Tdmpc, latent: Tensor, before: Tensor, noise: PlanNoise, *, horizon: int, least: float
) -> tuple[Tensor, Tensor]:
    """(action, mean [horizon, A]) of one environment, as the published code plans."""
    modules, model = workflow.modules(), workflow.model
    state, proposed = latent.expand(noise.proposed.shape[2], -1), []
    for t in range(horizon):
        proposed.append(drawn(workflow, state, noise.proposed[t, 0]))
        state = linears(modules["dynamics"], torch.cat([state, proposed[-1]], -1))
    mean = torch.cat([before[1:horizon], torch.zeros(1, 2)])
    std = torch.full_like(mean, 2.0)
    elites, score = mean, mean
    for given, last in zip(noise.drawn, noise.last_action, strict=True):
        actions = torch.cat(
            [torch.stack(proposed), (mean[:, None] + std[:, None] * given[:horizon, 0]).clamp(-1, 1)], 1
        )
        state, worth = latent.expand(actions.shape[1], -1), 0.0
        for t in range(horizon):
            both = torch.cat([state, actions[t]], -1)
            worth = worth + 0.99**t * linears(modules["reward_head"], both).squeeze(-1)
            state = linears(modules["dynamics"], both)
        worth = worth + 0.99**horizon * smaller(model.critic, state, drawn(workflow, state, last[0]))
        best = worth.topk(8).indices
        elites, score = actions[:, best], (0.5 * (worth[best] - worth.max())).exp()
        score = score / score.sum()
        moved = (score[:, None] * elites).sum(1)
        std = (score[:, None] * (elites - moved[:, None]).square()).sum(1).sqrt().clamp(least, 2)
        mean = 0.1 * mean + 0.9 * moved
    chosen = (score.log() - noise.choice[0].log()).argmax()
    assert noise.action is not None
    return (elites[0, chosen] + std[0] * noise.action[0]).clamp(-1, 1), mean


@torch.no_grad()
@pytest.mark.parametrize(("updates", "horizon", "least"), [(0, 1, 0.5), (12_499, 2, 0.275018), (30_000, 5, 0.05)])
def test_a_plan_is_that_of_the_published_code(updates: int, horizon: int, least: float) -> None:
    """At the horizon and the smallest deviation of the moment."""
    workflow = shaken_tdmpc(*FIRST)
    workflow._updates.fill_(updates)
    planner, rng = workflow._planner, torch.Generator().manual_seed(3)
    noise = planner.noise(1, workflow.model, rng, is_greedy=False)
    latent, before = torch.rand(1, 16, generator=rng), torch.rand(5, 1, 2, generator=rng)
    before[horizon:] = 0.0  # a plan as long as this one leaves nothing behind its end
    made = planner(workflow.model, latent, before, noise)
    action, mean = plan_by_hand(workflow, latent, before[:, 0], noise, horizon=horizon, least=least)
    torch.testing.assert_close(made.action[0], action, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(made.mean[:horizon, 0], mean, rtol=1e-3, atol=1e-4)
    assert not made.mean[horizon:].any()
    assert made.mean[:horizon].all()


def test_schedules_go_straight_from_start_to_end_and_stay() -> None:
    schedule = LinearSchedule(start=0.5, end=0.05, updates=100)
    values = [float(schedule(torch.tensor(done))) for done in (0, 50, 100, 1000)]
    assert values == pytest.approx([0.5, 0.275, 0.05, 0.05])
    with pytest.raises(ReverieError, match="updates of a schedule"):
        LinearSchedule(start=0, end=1, updates=0)


def test_updates_are_counted_unless_they_are_skipped_and_saved() -> None:
    workflow = shaken_tdmpc(*FIRST)
    spoiled = synthetic_batch()
    spoiled.reward[1, 2] = NAN
    for batch in (synthetic_batch(0), spoiled, synthetic_batch(1)):
        workflow.update(batch, phase=phase())
    assert workflow._updates.item() == 2
    other = small_tdmpc(*FIRST)
    place = other._updates.data_ptr()
    other.set_state(workflow.get_state())
    assert (other.model.updates.item(), other._updates.data_ptr()) == (2, place)
    assert bits(other.get_state()) == bits(workflow.get_state())


def test_neither_updates_nor_plans_ask_the_device() -> None:
    workflow, batch = shaken_tdmpc(*FIRST), synthetic_batch()
    policy, noise = workflow._planner, workflow._planner.noise(2, workflow.model, torch.Generator(), is_greedy=False)
    with NoQuestions(), torch.no_grad():
        policy(workflow.model, torch.rand(2, 16), torch.zeros(5, 2, 2), noise)
    with NoQuestions():
        metrics = workflow.update(batch, phase=phase()).metrics
    assert metrics["skipped"] == 0


def test_a_draw_stays_near_the_mode_and_inside_and_has_a_gradient_at_the_border() -> None:
    prior = DeterministicPrior(space=STATES.action, latent_dim=3, network=lambda a, b: nn.Linear(a, b))
    latent = torch.tensor([[0.1, 0.2, 0.3]])
    weight = torch.zeros(2, 3)
    weight[1] = 20.0
    with torch.no_grad():
        prior.network.weight.copy_(weight)  # pyright: ignore[reportCallIssue]
        prior.network.bias.zero_()  # pyright: ignore[reportCallIssue]
    draw = prior(latent, torch.tensor([[100.0, 1.0]]))
    assert draw.mode.tolist() == [[0.0, pytest.approx(1.0)]]
    assert draw.action.tolist() == [[pytest.approx(0.3), pytest.approx(1 - 1e-6)]]
    assert (draw.entropy.item(), draw.bonus.item()) == (0.0, 0.0)
    latent = torch.tensor([[0.0, 0.0, 0.01]], requires_grad=True)
    action = prior(latent, torch.tensor([[0.0, 100.0]])).action[0, 1]
    expected = 20 * (1 - torch.tensor(0.2).tanh() ** 2)
    assert torch.autograd.grad(action, latent)[0][0, 2].item() == pytest.approx(float(expected), rel=1e-4)


def test_beliefs_keep_a_share_of_their_mean_and_at_least_the_deviation_of_the_moment() -> None:
    search = MomentumSearch(min_std=LinearSchedule(start=0.5, end=0.1, updates=10), momentum=0.25)
    before = Belief(torch.full((1, 1, 1), 1.0), torch.full((1, 1, 1), 2.0))
    learned = search.learned(torch.tensor([[[[0.2], [0.4]]]]), torch.tensor([[0.5, 0.5]]))
    for updates, least in ((0, 0.5), (5, 0.3), (50, 0.1)):
        settled = search.settled(before, learned, torch.tensor(updates))
        assert (settled.mean.item(), settled.std.item()) == (pytest.approx(0.475), pytest.approx(least))
    with pytest.raises(ReverieError, match="max_std of the search"):
        MomentumSearch(min_std=LinearSchedule(start=3.0, end=0.1, updates=10))


def test_weights_begin_orthogonal_and_last_outputs_at_zero() -> None:
    torch.manual_seed(0)
    network = EluMlp(6, 4, layers=2, units=8)
    for layer in (one for one in network if isinstance(one, nn.Linear)):
        rows, columns = layer.weight.shape
        gram = layer.weight @ layer.weight.T if rows <= columns else layer.weight.T @ layer.weight
        torch.testing.assert_close(gram, torch.eye(min(rows, columns)), rtol=0, atol=1e-5)
        assert not layer.bias.any()
    ensemble = EluEnsemble(6, 1, members=2, layers=2, units=8)
    first, second = ensemble.weight[0]
    torch.testing.assert_close(first.T @ first, torch.eye(6), rtol=0, atol=1e-5)
    assert not torch.equal(first, second)
    assert not ensemble(torch.rand(3, 6)).any()


def test_compiled_steps_are_those_of_eager_code(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for is_on in (False, True):
        sizes = ("size=debug", "training.batch_size=3", "controller.planner.iterations=2", *FIRST)
        config = composed("gym_Pendulum-v1", ["experiment=tdmpc_pendulum", *sizes])
        with monkeypatch.context() as patch, traced(patch, is_on=is_on):
            run = rehearsal(config, spaces=STATES, device=CPU, streams=2, rows=24)
            metrics = run.update()
        found.append(torch.stack([metrics[key] for key in sorted(metrics)]).float())
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)


def test_a_schedule_beyond_the_horizon_is_refused() -> None:
    for setting in ("start=0", "end=6"):
        with pytest.raises(ReverieError, match="of the horizon_schedule"):
            small_tdmpc(*FIRST, f"controller.planner.horizon_schedule.{setting}")


def test_the_experiment_has_the_published_values() -> None:
    config = composed("dmc_walker_walk", ["experiment=tdmpc1_dmc"])
    training, planner = plain(config.training), plain(config.controller.planner)
    assert (training["batch_size"], training["batch_length"], training["prefill_steps"]) == (512, 6, 5000)
    assert training["train_ratio"] == 512 * 6
    assert (config.size.latent_dim, config.size.mlp_units, config.size.encoder_units) == (50, 512, 256)
    assert (config.buffer.replay.priority_exponent, config.buffer.replay.importance_exponent) == (0.6, 0.4)
    assert (planner["samples"] - planner["proposals"], planner["proposals"], planner["elites"]) == (512, 25, 64)
    assert small_tdmpc(*FIRST)._config.gamma(tasks=1, device=CPU) == 0.99
    assert isinstance(small_tdmpc(*FIRST)._planner, Mppi)
