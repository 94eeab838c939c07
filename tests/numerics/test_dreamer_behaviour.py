"""All forms of Dreamer by configuration alone: what trains what, the losses they compute, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from small_dreamer import OBS_DIM, SPACES, phase, shaken_dreamer, small_dreamer, synthetic_batch
from torch import Tensor

from reverie.components.networks.actions import TanhNormalOutput
from reverie.components.networks.heads import Scalar
from reverie.runtime.adam import Adam
from reverie.types import Batch, Observation, ReverieError, Space, Spaces
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_optimizers import trainable_parameters

DISCRETE = SPACES
CONTINUOUS = Spaces(obs=SPACES.obs, action=Space(shape=(2,), dtype="float32"))
SEVERAL = Spaces(obs=SPACES.obs, action=Space(shape=(2,), dtype="int64", classes=(2, 3)))
FORMS = ("v1", "v2", "v3_2023")
NOISELESS = "workflow.exploration.action_noise=0"


def overrides(form: str) -> list[str]:
    chosen = [f"{group}=dreamer_{form}" for group in ("components", "controller", "workflow")]
    return [*chosen, NOISELESS, "workflow.horizon=4", "optimizers.model.warmup_updates=0"]


def dreamer(form: str, *more: str, spaces: Spaces = DISCRETE) -> Dreamer:
    return shaken_dreamer(*overrides(form), *more, spaces=spaces, size=0.2)


def batch_of(workflow: Dreamer, spaces: Spaces, seed: int = 0) -> Batch:
    """Latents as this form stores them."""
    batch = synthetic_batch(seed, spaces=spaces)
    latent = workflow._rssm.initial(28, torch.device("cpu")).detach()
    batch.stored = {key: value.unflatten(0, (4, 7)) for key, value in workflow._rssm.stored(latent).items()}
    return batch


def losses_of(workflow: Dreamer, spaces: Spaces) -> dict[str, Tensor]:
    batch = batch_of(workflow, spaces)
    carry = workflow._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
    return workflow.learned(carry, batch).losses


def reached(workflow: Dreamer, loss: Tensor) -> set[str]:
    parameters = trainable_parameters(workflow.modules())
    found = torch.autograd.grad(loss.mean(), list(parameters.values()), retain_graph=True, materialize_grads=True)
    return {name.split(".")[0] for name, grad in zip(parameters, found, strict=True) if grad.any()}


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS, SEVERAL], ids=["discrete", "continuous", "several"])
@pytest.mark.parametrize("form", FORMS)
def test_which_loss_trains_what(form: str, spaces: Spaces) -> None:
    """Gradients of dreams go through the model and leave nothing in it."""
    workflow = dreamer(form, "workflow.free_nats=0", spaces=spaces)
    model = {"encoder", "representation_learner"}
    expected = {
        "reconstruction": model | {"decoder"},
        "reward": model | {"reward_head"},
        "dynamics": model,
        "representation": model,
        "policy": {"actor"},
        "value": {"critic"},
    }
    if form != "v1":
        expected["continue"] = model | {"continue_head"}
    workflow_losses = losses_of(workflow, spaces)
    assert {name: reached(workflow, loss) for name, loss in workflow_losses.items()} == expected


@pytest.mark.parametrize("form", FORMS)
def test_an_update_moves_every_part_by_its_own_optimizer(form: str) -> None:
    workflow = dreamer(form)
    before = {name: value.detach().clone() for name, value in trainable_parameters(workflow.modules()).items()}
    metrics = workflow.update(batch_of(workflow, DISCRETE), phase=phase()).metrics
    assert all(value.dim() == 0 and not value.requires_grad and value.isfinite() for value in metrics.values())
    moved = {
        name.split(".")[0]
        for name, value in trainable_parameters(workflow.modules()).items()
        if not torch.equal(value, before[name])
    }
    assert moved == {name.split(".")[0] for name in before}
    for name, optimizer in workflow._optimizers.by_name.items():
        assert isinstance(optimizer, Adam)
        owned = {key.split(".")[0] for key in optimizer.get_state()["mean"]}
        assert owned == {name} or (name == "model" and not owned & {"actor", "critic"})
        assert f"{name}/grad_norm" in metrics
    assert "grad_norm" not in metrics


def test_the_gradient_through_the_dynamics_is_that_of_the_return() -> None:
    """Against finite differences under the same noise. The policy is made blind, because the gradient that would go
    through what it sees is stopped.
    """
    workflow = dreamer("v1", spaces=CONTINUOUS)
    output = workflow._actor.output
    assert isinstance(output, TanhNormalOutput)
    for layer in (output.mean, output.stddev):
        torch.nn.init.zeros_(layer.weight)
    batch = batch_of(workflow, CONTINUOUS)
    rng = workflow._rng
    assert rng is not None
    noise = rng.get_state()

    def policy_loss() -> Tensor:
        rng.set_state(noise)
        carry = workflow._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
        return workflow.learned(carry, batch).losses["policy"].mean()

    bias = output.mean.bias
    (grad,) = torch.autograd.grad(policy_loss(), bias)
    step = 1e-2
    for i in range(2):
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                bias[i] += sign * step
            values.append(float(policy_loss().detach()))
            with torch.no_grad():
                bias[i] -= sign * step
        assert float(grad[i]) == pytest.approx((values[0] - values[1]) / (2 * step), rel=0.05, abs=1e-3)


def test_all_gradients_are_taken_before_anything_moves() -> None:
    """The actor's gradient goes through weights that the model's optimiser is about to move."""
    one, other = (dreamer("v1", "optimizers.model.learning_rate=0.5", spaces=CONTINUOUS) for _ in range(2))
    batch = batch_of(one, CONTINUOUS)
    one.update(batch, phase=phase())
    for name in ("model", "critic"):
        other._optimizers.by_name[name]._learning_rate = 0.0
    other.update(batch, phase=phase())
    for ours, theirs in zip(one._actor.parameters(), other._actor.parameters(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_not_finite_for_one_optimizer_stops_all(form: str) -> None:
    """The reward is read by the model's loss alone; actor, critic and everything they remember stay as well."""
    workflow = dreamer(form)
    workflow.update(batch_of(workflow, DISCRETE), phase=phase())
    before = copy.deepcopy(workflow.get_state())
    spoiled = batch_of(workflow, DISCRETE)
    spoiled.reward[2, 3] = float("nan")
    metrics = workflow.update(spoiled, phase=phase()).metrics
    assert metrics["skipped"] == 1
    assert metrics["actor/grad_norm"].isfinite()
    after = workflow.get_state()
    for part in ("components", "controllers", "optimizers"):
        assert same(before[part], after[part]), part
    assert workflow.update(batch_of(workflow, DISCRETE), phase=phase()).metrics["skipped"] == 0
    assert not same(before["controllers"], workflow.get_state()["controllers"])


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    return torch.equal(one, other) if isinstance(one, Tensor) else one == other


# Numbers of the configuration


def modelled_losses(workflow: Dreamer) -> Mapping[str, Tensor]:
    workflow.draw_the_most_likely()
    return losses_of(workflow, DISCRETE)


def test_free_nats_of_the_mean() -> None:
    kl = modelled_losses(dreamer("v2", "workflow.free_nats=0", "workflow.free_nats_of=state"))["dynamics"]
    assert kl.shape == (4, 6)
    middle = float(kl.mean().detach())
    assert float(kl.detach().min()) < middle < float(kl.detach().max())
    above, below = (
        modelled_losses(dreamer("v2", f"workflow.free_nats={middle * factor}"))["dynamics"] for factor in (0.9, 1.1)
    )
    torch.testing.assert_close(above, kl.mean())
    assert float(below.detach()) == pytest.approx(middle * 1.1)
    per_state = modelled_losses(dreamer("v2", f"workflow.free_nats={middle * 0.9}", "workflow.free_nats_of=state"))
    assert float(per_state["dynamics"].detach().mean()) > middle * 1.001


def test_the_plain_kl_of_v1_has_the_gradient_of_one_kl() -> None:
    workflow = dreamer("v1", "workflow.free_nats=0")
    assert workflow._config.loss_weights["dynamics"] == workflow._config.loss_weights["representation"] == 1.0
    losses = modelled_losses(workflow)
    torch.testing.assert_close(losses["dynamics"], losses["representation"])


def test_rewards_behind_a_tanh() -> None:
    plain, squashed = (dreamer("v2", f"workflow.reward_transform={kind}") for kind in ("none", "tanh"))
    batch = batch_of(plain, DISCRETE)
    assert torch.equal(plain._trained_rows(batch).reward, batch.reward[:, 1:])
    torch.testing.assert_close(squashed._trained_rows(batch).reward, batch.reward[:, 1:].tanh())


@pytest.mark.parametrize("start", ["stored", "initial"])
def test_where_replayed_sequences_begin(start: str) -> None:
    """With `initial` the stored latents are neither read nor refreshed."""
    workflow = dreamer("v2", f"workflow.replay_start={start}")
    workflow.draw_the_most_likely()
    batch = batch_of(workflow, DISCRETE)

    def first_latent(fill: float) -> Tensor:
        stored = {"deter": torch.full_like(batch.stored["deter"], fill), "stoch": batch.stored["stoch"]}
        carry = workflow._rssm.restored({key: value[:, 0] for key, value in stored.items()})
        return workflow.learned(carry, batch).modelled.latents.deter[:, 0]

    assert torch.equal(first_latent(0.0), first_latent(0.7)) == (start == "initial")
    assert (workflow.update(batch, phase=phase()).write_back is None) == (start == "initial")


def test_gamma_outside_the_continue_head() -> None:
    inside, outside = (
        dreamer("v3_2023", f"workflow.has_discount_in_head={flag}", "workflow.rounds_continues=false")
        for flag in ("true", "false")
    )
    feature = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    gamma = 1 - 1 / 333
    torch.testing.assert_close(outside._imagined_live(feature), gamma * inside._imagined_live(feature))
    for workflow, target in ((inside, gamma), (outside, 1.0)):
        seen: list[Scalar] = []
        head = workflow._continue_head
        head.register_forward_hook(lambda _head, _given, out, seen=seen: seen.append(out))
        losses = modelled_losses(workflow)
        is_terminal = batch_of(workflow, DISCRETE).is_terminal[:, 1:]
        torch.testing.assert_close(losses["continue"], seen[0].loss((~is_terminal).float() * target))


def test_continues_that_are_rounded() -> None:
    workflow = dreamer("v3_2023")
    gamma = 1 - 1 / 333
    feature = torch.randn(50, 16, generator=torch.Generator().manual_seed(0))
    chance = workflow._continue_head(feature).mean()
    assert torch.equal(workflow._imagined_live(feature), (chance > 0.5).float() * gamma)
    assert 0 < float((chance > 0.5).float().mean()) < 1


# Refusals


@pytest.mark.parametrize(
    ("form", "change", "complaint"),
    [
        ("v1", "+workflow.loss_weights.continue=1.0", r"does not learn: remove .*loss_weights\.continue"),
        ("v3_2023", "workflow.has_discount_in_head=true", "`workflow.rounds_continues` would round gamma away"),
        ("v1", "workflow.has_discount_in_head=false", "`components.continue_head` is fixed at its own gamma"),
        ("v2", "~workflow.loss_weights.continue", r"learns: give .*loss_weights\.continue"),
        ("v1", "workflow.slow_regularizer=1.0", "no slow copy"),
        ("v2", "+workflow.loss_weights.replay_value=0.3", "ArrivalCredit"),
        ("v1", "workflow.horizon=1", r"workflow\.horizon.* at least 2"),
        ("v2", "workflow.grad_heads=[replay_value]", "grad_heads"),
        ("v1", "+optimizers.world=${optimizers.model}", "model, actor and critic, got world"),
        ("v1", "~optimizers.model", r"optimizers\.model"),
        ("v2", "workflow.reward_transform=clip", "'none', 'tanh'"),
        ("v1", "controller.objective._target_=reverie.components.return_computers.td_lambda.TdLambda", "objective"),
    ],
)
def test_parts_that_do_not_fit_are_refused(form: str, change: str, complaint: str) -> None:
    more = [change] if form != "v2" or "continue" not in change else [change, "workflow.grad_heads=[reward]"]
    with pytest.raises(ReverieError, match=complaint):
        small_dreamer(*overrides(form), *more)


def test_a_critic_of_its_own_optimizer_cannot_train_the_representation() -> None:
    more = ["+workflow.loss_weights.replay_value=0.3", "workflow.grad_heads=[reward,replay_value]"]
    with pytest.raises(ReverieError, match=r"grad_heads.*replay_value"):
        small_dreamer(*overrides("v3_2023"), *more)
    workflow = dreamer("v3_2023", more[0])
    assert reached(workflow, losses_of(workflow, DISCRETE)["replay_value"]) == {"critic"}


def test_a_random_controller_acts_and_stores_latents() -> None:
    workflow = dreamer("v2", spaces=CONTINUOUS)
    policy: Any = workflow.policy("random")
    flags = torch.zeros(500, dtype=torch.bool)
    seen = Observation(
        obs={"vector": torch.zeros(500, OBS_DIM)},
        reward=flags.float(),
        is_first=~flags,
        is_last=flags,
        is_terminal=flags,
    )
    _, action, stored = policy.act(policy.initial(500), seen, mode="train")
    assert action.abs().max() <= 1
    assert 0.5 < float(action.std()) < 0.65  # uniform on [-1, 1]: 0.577
    assert stored.keys() == workflow._rssm.stored(workflow._rssm.initial(1, torch.device("cpu"))).keys()
