"""An update whose loss or gradient is not finite changes nothing, bit for bit, and asks the device nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_dreamer import phase, shaken_dreamer, synthetic_batch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.distributions import TwoHot, symexp_bins
from reverie.runtime.finite import all_finite, replace_where
from reverie.runtime.optimizer import LaProp
from reverie.types import Batch, Observation
from reverie.workflows.dreamer import unless_skipped

NAN, INFINITY = float("nan"), float("inf")


def bits(tree: Any) -> Any:
    """The same tree with the bytes of its tensors: NaN equals NaN, and 0.0 does not equal -0.0."""
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    if isinstance(tree, Tensor):
        return tree.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return repr(tree)


@pytest.mark.parametrize("bad", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_one_bad_element_is_seen(bad: float, place: int) -> None:
    values = [torch.ones(3), torch.ones(2, 2, dtype=torch.bfloat16), torch.ones(())]
    assert bool(all_finite(*values))
    values[place].view(-1)[-1] = bad
    assert not bool(all_finite(*values))


def test_replacing_keeps_every_bit_where_the_condition_is_false() -> None:
    current = torch.tensor([-0.0, 1.0, NAN])
    before = bits(current)
    replace_where(torch.tensor(False), [(current, torch.tensor([NAN, INFINITY, 2.0]))])
    assert bits(current) == before
    replace_where(torch.tensor(True), [(current, torch.zeros(3))])
    assert bits(current) == bits(torch.zeros(3))


def laprop(**options: Any) -> tuple[LaProp, nn.Parameter]:
    parameter = nn.Parameter(torch.tensor([1.0, -2.0, 0.5]))
    return LaProp({"p": parameter}, warmup_updates=0, **options), parameter


GOOD = torch.tensor([0.1, -0.2, 0.3])
BAD_STEPS: dict[str, Callable[[LaProp], dict[str, Tensor]]] = {
    "NaN gradient": lambda one: one.apply([torch.tensor([0.1, NAN, 0.1])]),
    "infinite gradient": lambda one: one.apply([torch.tensor([0.1, INFINITY, 0.1])]),
    "norm that overflows": lambda one: one.apply([torch.full((3,), 1e30)]),
    "NaN loss": lambda one: one.apply([GOOD], watched=torch.tensor(NAN)),
}


@pytest.mark.parametrize("kind", BAD_STEPS)
def test_laprop_goes_on_as_if_the_bad_step_had_not_been(kind: str) -> None:
    (one, weight), (other, other_weight) = laprop(), laprop()
    for optimizer in (one, other):
        assert optimizer.apply([GOOD])["skipped"] == 0
    before = bits({"weight": weight, **one.get_state()})
    assert BAD_STEPS[kind](one)["skipped"] == 1
    assert bits({"weight": weight, **one.get_state()}) == before
    for optimizer in (one, other):
        optimizer.apply([GOOD])
    assert bits(one.get_state()) == bits(other.get_state())
    assert bits(weight) == bits(other_weight) != before["weight"]


def test_a_step_to_infinity_is_not_made() -> None:
    one, weight = laprop(learning_rate=INFINITY)
    before = bits({"weight": weight, **one.get_state()})
    assert one.apply([GOOD])["skipped"] == 1
    assert bits({"weight": weight, **one.get_state()}) == before


def test_the_return_scale_can_take_its_last_update_back() -> None:
    scale = ReturnScale()
    scale.update(torch.arange(100.0))
    before = bits(scale.state_dict())
    scale.update(torch.full((100,), NAN))
    assert bits(scale.state_dict()) != before
    scale.take_back(where=torch.tensor(True))
    assert bits(scale.state_dict()) == before
    scale.update(torch.arange(50.0))
    after = bits(scale.state_dict())
    scale.take_back(where=torch.tensor(False))
    assert bits(scale.state_dict()) == after != before


@pytest.mark.parametrize("target", [NAN, INFINITY, -INFINITY])
def test_a_target_that_is_no_number_gives_no_finite_loss(target: float) -> None:
    distribution = TwoHot(torch.zeros(2, 15), symexp_bins(15))
    loss = distribution.loss(torch.tensor([target, 1e30]))
    assert not loss[0].isfinite()
    assert loss[1].isfinite()  # beyond the last bin, but a number


def with_bad_observation(batch: Batch) -> None:
    batch.obs["vector"][1, 3, 2] = NAN


def with_bad_reward(batch: Batch) -> None:
    batch.reward[2, 4] = NAN


def with_infinite_reward(batch: Batch) -> None:
    batch.reward[0, 5] = -INFINITY


def with_bad_latent(batch: Batch) -> None:
    batch.stored["deter"][3, 0, 1] = NAN


@pytest.mark.parametrize("spoil", [with_bad_observation, with_bad_reward, with_infinite_reward, with_bad_latent])
def test_dreamer_is_left_as_it_was_by_a_bad_batch(spoil: Callable[[Batch], None]) -> None:
    workflow = shaken_dreamer("optimizers.model.warmup_updates=0")
    assert workflow.update(synthetic_batch(0), phase=phase()).metrics["skipped"] == 0
    before = bits(workflow.get_state())
    batch = synthetic_batch(1)
    spoil(batch)
    result = workflow.update(batch, phase=phase())
    assert result.metrics["skipped"] == 1
    assert bits(workflow.get_state()) == before
    assert bits(result.write_back) == bits({name: value[:, 1:] for name, value in batch.stored.items()})
    good = workflow.update(synthetic_batch(1), phase=phase())
    assert good.metrics["skipped"] == 0
    after = bits(workflow.get_state())
    assert after["controllers"]["modules"]["critic"] != before["controllers"]["modules"]["critic"]
    assert after["components"]["return_scale"] != before["components"]["return_scale"]
    assert bits(good.write_back) != bits(result.write_back)


def test_a_gradient_alone_can_spoil_an_update() -> None:
    """All losses are finite here, and the return scale has seen returns that are: both must not count either."""
    workflow = shaken_dreamer("optimizers.model.warmup_updates=0")
    before = bits(workflow.get_state())
    spoiled = workflow._decoder.get_parameter(next(name for name, _ in workflow._decoder.named_parameters()))
    handle = spoiled.register_hook(lambda gradient: gradient * NAN)
    metrics = workflow.update(synthetic_batch(), phase=phase()).metrics
    handle.remove()
    assert all(value.isfinite() for name, value in metrics.items() if name.startswith("loss/"))
    assert metrics["skipped"] == 1
    assert bits(workflow.get_state()) == before


@pytest.mark.parametrize("bad", [NAN, INFINITY])
def test_a_policy_outlives_a_bad_observation_and_a_bad_carry(bad: float) -> None:
    policy = shaken_dreamer().policy(None)
    carry = policy.initial(2)
    carry["deter"][0] = bad
    flags = torch.zeros(2, dtype=torch.bool)
    vector = torch.ones(2, 4)
    for _ in range(2):
        obs = Observation(
            obs={"vector": vector}, reward=torch.zeros(2), is_first=flags, is_last=flags, is_terminal=flags
        )
        carry, _, stored = policy.act(carry, obs, mode="train")
        assert all(value.isfinite().all() for value in (*carry.values(), *stored.values()))
        vector[1, 2] = bad


class NoQuestions(TorchDispatchMode):
    """Refuses what makes the host wait for the device: `.item()`, `bool(tensor)`, a tensor as an index of a list."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default, "the host asked the device a question"
        return func(*args, **(kwargs or {}))


def test_skipping_asks_the_device_nothing() -> None:
    workflow, batch = shaken_dreamer(), synthetic_batch()
    with_bad_reward(batch)
    learned = workflow.learned(
        workflow._rssm.restored({name: value[:, 0] for name, value in batch.stored.items()}), batch
    )
    with pytest.raises(AssertionError, match="a question"), NoQuestions():
        bool(torch.ones(()) > 0)
    with NoQuestions():
        skipped = workflow.step(learned, progress=phase().progress)["skipped"].bool()
        unless_skipped(workflow._rssm.stored(learned.modelled.latents.detach()), batch, skipped)
    assert skipped
