"""DreamerV3's joint update as a whole: what it reaches, what it refuses, and its losses after 100 steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from small_dreamer import first_latent, phase, shaken_dreamer, small_dreamer, synthetic_batch
from torch import Tensor

from reverie.components.networks.heads import TwoHotHead
from reverie.components.networks.symlog import symexp
from reverie.types import ReverieError
from reverie.workflows.base import weighted_sum
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_optimizers import trainable_parameters

LOSSES = ("reconstruction", "reward", "continue", "dynamics", "representation", "policy", "value", "replay_value")

GOLDEN = {
    "reconstruction": 1.557490,
    "reward": 2.009350,
    "continue": 0.335927,
    "dynamics": 0.0427753,
    "representation": 0.0427753,
    "policy": 0.0664346,
    "value": 0.627373,
    "replay_value": 3.543377,
}
"""Losses of the 100th update, float32 on a CPU. They change with the mathematics and with the order of draws."""

WORLD_MODEL = ("encoder", "representation_learner", "decoder", "reward_head", "continue_head")


def losses_of(workflow: Dreamer) -> dict[str, Tensor]:
    """The losses of one update, with their graphs."""
    batch = synthetic_batch()
    return workflow.learned(first_latent(workflow, batch), batch).losses


def reached(workflow: Dreamer, loss: Tensor) -> set[str]:
    """Names of the parts in which some parameter gets a gradient."""
    parameters = trainable_parameters(workflow.modules())
    found = torch.autograd.grad(loss.mean(), list(parameters.values()), retain_graph=True, materialize_grads=True)
    return {name.split(".")[0] for name, grad in zip(parameters, found, strict=True) if grad.any()}


def test_losses_after_100_updates() -> None:
    workflow = small_dreamer(
        "optimizers.model.learning_rate=1.0e-3",
        "optimizers.model.warmup_updates=10",
        "optimizers.model.decay=0",
        "workflow.loss_weights.reconstruction=1.0",
        "workflow.horizon=15",
        "workflow.entropy_scale=1.0e-2",
        "workflow.free_nats=0.01",
        "size.bins=15",
    )
    # Bins up to 5e8 turn the last digit of a fresh model's prediction into a number of its own.
    for head in (workflow._reward_head, workflow._critic.online, workflow._critic.slow):
        assert isinstance(head, TwoHotHead)
        head.bins.copy_(symexp(torch.linspace(-3, 3, 15)))
    for update in range(100):
        metrics = workflow.update(synthetic_batch(update % 3), phase=phase()).metrics
    ours = {name: float(metrics[f"loss/{name}"]) for name in LOSSES}
    assert ours == pytest.approx(GOLDEN, rel=1e-3)


def test_every_metric_is_a_finite_number_and_every_loss_is_among_them() -> None:
    metrics = small_dreamer().update(synthetic_batch(), phase=phase()).metrics
    assert {name.removeprefix("loss/") for name in metrics if name.startswith("loss/")} == set(LOSSES)
    assert all(value.dim() == 0 and not value.requires_grad for value in metrics.values())
    assert all(value.isfinite() for value in metrics.values())


def test_every_parameter_gets_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow = shaken_dreamer()
    seen: list[Sequence[Tensor]] = []
    optimizer = workflow._optimizers.by_name["model"]
    apply = optimizer.apply

    def recorded(gradients: Sequence[Tensor], *, watched: Tensor, progress: Tensor) -> dict[str, Tensor]:
        seen.append(gradients)
        return apply(gradients, watched=watched, progress=progress)

    monkeypatch.setattr(optimizer, "apply", recorded)
    workflow.update(synthetic_batch(), phase=phase())
    names = optimizer.get_state()["mean"]
    without = [name for name, grad in zip(names, seen[0], strict=True) if not grad.any()]
    assert without == []
    assert not any(name.startswith("critic.slow") for name in names)
    assert {name.split(".")[0] for name in names} == {*WORLD_MODEL, "actor", "critic"}


def test_which_loss_trains_what() -> None:
    workflow = shaken_dreamer()
    model = {"encoder", "representation_learner"}
    assert {name: reached(workflow, loss) for name, loss in losses_of(workflow).items()} == {
        "reconstruction": model | {"decoder"},
        "reward": model | {"reward_head"},
        "continue": model | {"continue_head"},
        "dynamics": {"encoder", "representation_learner"},
        "representation": {"encoder", "representation_learner"},
        "policy": {"actor"},
        "value": {"critic"},
        "replay_value": model | {"critic"},
    }


@pytest.mark.parametrize("stopped", ["reconstruction", "reward", "continue", "replay_value"])
def test_grad_heads_say_which_losses_reach_the_representation(stopped: str) -> None:
    heads = {
        "reconstruction": "decoder",
        "reward": "reward_head",
        "continue": "continue_head",
        "replay_value": "critic",
    }
    kept = ",".join(name for name in heads if name != stopped)
    workflow = shaken_dreamer(f"workflow.grad_heads=[{kept}]")
    losses = losses_of(workflow)
    for name, head in heads.items():
        model = set() if name == stopped else {"encoder", "representation_learner"}
        assert reached(workflow, losses[name]) == model | {head}


def test_an_unknown_name_in_grad_heads_is_refused() -> None:
    with pytest.raises(ReverieError, match=r"grad_heads.*policy"):
        small_dreamer("workflow.grad_heads=[reward,policy]")


def test_losses_have_one_number_per_state() -> None:
    shapes = {name: tuple(loss.shape) for name, loss in losses_of(shaken_dreamer("workflow.horizon=5")).items()}
    replayed = dict.fromkeys(["reconstruction", "reward", "continue", "dynamics", "representation"], (4, 6))
    assert shapes == replayed | {"policy": (24, 5), "value": (24, 5), "replay_value": (4, 5)}


@pytest.mark.parametrize("change", ["~workflow.loss_weights.value", "+workflow.loss_weights.extra=1.0"])
def test_weights_that_do_not_name_the_losses_are_refused(change: str) -> None:
    with pytest.raises(ReverieError, match=r"loss_weights.*(value|extra)"):
        small_dreamer(change)


def test_weighted_sum_averages_each_loss_by_itself() -> None:
    losses = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([[10.0, 20.0, 30.0]])}
    assert float(weighted_sum(losses, {"b": 0.1, "a": 2.0})) == pytest.approx(2 * 2 + 0.1 * 20)


def test_an_update_is_reproducible_and_follows_its_stream() -> None:
    one, same, other = small_dreamer(), small_dreamer(), small_dreamer()
    assert other._rng is not None
    other._rng.manual_seed(99)
    results = [workflow.update(synthetic_batch(), phase=phase()).write_back for workflow in (one, same, other)]
    stoch = [result["stoch"] for result in results if result is not None]
    assert torch.equal(stoch[0], stoch[1])
    assert not torch.equal(stoch[0], stoch[2])


def test_the_slow_critic_follows_by_its_rate() -> None:
    workflow = shaken_dreamer("optimizers.model.warmup_updates=0", "optimizers.model.learning_rate=0.1")
    critic = workflow._critic
    assert critic.slow is not None
    before = [parameter.clone() for parameter in critic.slow.parameters()]
    workflow.update(synthetic_batch(), phase=phase())
    for old, slow, online in zip(before, critic.slow.parameters(), critic.online.parameters(), strict=True):
        assert not torch.equal(old, slow)
        torch.testing.assert_close(slow, 0.98 * old + 0.02 * online.detach())
