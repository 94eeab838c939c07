"""The first tensor that is not finite is named, wherever it comes from."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from small_dreamer import phase, shaken_dreamer, synthetic_batch

from reverie.orchestration.nonfinite_search import Finding, Replayed, replayed_update
from reverie.types import Batch
from reverie.workflows.dreamer import Dreamer

NAN, INFINITY = float("nan"), float("inf")


def replayed(spoil: Callable[[Dreamer, Batch], None], *overrides: str) -> Replayed:
    workflow, batch = shaken_dreamer(*overrides), synthetic_batch()
    spoil(workflow, batch)
    return replayed_update(workflow, "update", batch, phase())


def spoil_observation(_: Dreamer, batch: Batch) -> None:
    batch.obs["vector"][2, 3, 1] = NAN
    batch.reward[0, 0] = NAN


def spoil_reward(_: Dreamer, batch: Batch) -> None:
    batch.reward[1, 4] = -INFINITY


def spoil_latent(_: Dreamer, batch: Batch) -> None:
    batch.stored["deter"][0, 0, 7] = INFINITY


def spoil_weight(workflow: Dreamer, _: Batch) -> None:
    with torch.no_grad():
        workflow._critic.get_parameter("slow.output.weight")[0, 3] = NAN


def spoil_memory(workflow: Dreamer, _: Batch) -> None:
    state = workflow._optimizers.by_name["model"].get_state()
    state["square"]["actor.output.logits.bias"][1] = INFINITY
    workflow._optimizers.by_name["model"].set_state(state)


def spoil_layer(workflow: Dreamer, _: Batch) -> None:
    with torch.no_grad():
        workflow._reward_head.get_parameter("output.weight").fill_(3e38)  # finite, but its products are not


def spoil_gradient(workflow: Dreamer, _: Batch) -> None:
    workflow._actor.get_parameter("mlp.linears.0.weight").register_hook(lambda gradient: gradient * NAN)


def spoil_norm(workflow: Dreamer, _: Batch) -> None:
    workflow._actor.get_parameter("mlp.linears.0.weight").register_hook(
        lambda gradient: torch.full_like(gradient, 1e30)
    )


CASES = {
    spoil_observation: ("batch", "obs/vector", (2, 3, 1)),
    spoil_reward: ("batch", "reward", (1, 4)),
    spoil_latent: ("batch", "stored/deter", (0, 0, 7)),
    spoil_weight: ("weight", "critic.slow.output.weight", (0, 3)),
    spoil_memory: ("optimizer", "model.square.actor.output.logits.bias", (1,)),
    spoil_gradient: ("gradient", "actor.mlp.linears.0.weight", (0, 0)),
    spoil_norm: ("norm", "actor.mlp.linears.0.weight", ()),
}


@pytest.mark.parametrize("spoil", CASES)
def test_the_first_tensor_is_named(spoil: Callable[[Dreamer, Batch], None]) -> None:
    found = replayed(spoil)
    assert found.is_skipped
    assert found.finding is not None
    assert (found.finding.kind, found.finding.name, found.finding.index) == CASES[spoil]


def test_the_innermost_module_is_named() -> None:
    found = replayed(spoil_layer).finding
    assert found is not None
    assert (found.kind, found.name) == ("output", "reward_head.output")


def spoil_square(workflow: Dreamer, _: Batch) -> None:
    """The decoder's prediction is finite, and its squared error is not."""
    with torch.no_grad():
        workflow._decoder.get_parameter("vectors.outputs.0.weight").fill_(1e25)


def test_a_loss_is_named_when_all_that_modules_give_is_finite() -> None:
    assert replayed(spoil_square).finding == Finding(kind="loss", name="reconstruction", value=INFINITY)


def test_a_step_to_infinity_is_traced_to_the_learning_rate() -> None:
    found = replayed(lambda *_: None, "optimizers.model.learning_rate=inf", "optimizers.model.warmup_updates=0")
    assert found.finding == Finding(kind="metric", name="learning_rate", value=INFINITY)
    # The rate fits into a float32, but not what becomes of it.
    huge = replayed(lambda *_: None, "optimizers.model.learning_rate=3e38", "optimizers.model.warmup_updates=0")
    assert huge.finding is not None
    assert huge.finding.kind == "step"
    assert "learning rate" in str(huge.finding)


def test_a_sound_update_has_no_finding_and_leaves_no_hook_behind() -> None:
    workflow, batch = shaken_dreamer(), synthetic_batch()
    found = replayed_update(workflow, "update", batch, phase())
    assert found.finding is None
    assert not found.is_skipped
    for module in workflow.modules().values():
        assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
        assert not any(parameter._backward_hooks for parameter in module.parameters())


def test_watching_changes_no_number() -> None:
    plain, watched = shaken_dreamer(), shaken_dreamer()
    metrics = plain.update(synthetic_batch(), phase=phase()).metrics
    found = replayed_update(watched, "update", synthetic_batch(), phase())
    assert {name: float(value) for name, value in found.result.metrics.items()} == {
        name: float(value) for name, value in metrics.items()
    }


def test_a_finding_reads_like_a_sentence() -> None:
    one = Finding(kind="batch", name="obs/vector", index=(3, 17), value=NAN, count=2, elements=4096)
    assert str(one) == "the batch's obs/vector[3, 17] is nan (2 of 4,096 elements are not finite)"
    other = Finding(kind="output", name="decoder.images.convolutions.1", index=(0,), value=INFINITY, elements=2)
    assert str(other).startswith("the output of module decoder.images.convolutions.1[0] is inf")
    assert str(Finding(kind="loss", name="reward")) == "the loss reward is nan"
