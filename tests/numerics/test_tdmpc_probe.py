"""TD-MPC's probe: it learns what latents stand for, and the agent is bit for bit what it is without one."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from small_tdmpc import BOTH, PICTURES, STATES, phase, seen, shaken_tdmpc, small_tdmpc, synthetic_batch
from test_skipped_updates import NoQuestions, bits

from reverie.components.networks.probe_decoder import ProbeDecoder
from reverie.types import Batch, ReverieError, Space, Spaces
from reverie.workflows.tdmpc import Tdmpc
from reverie.workflows.tdmpc_probe import MAX_ROWS, probed_rows
from reverie.workflows.tdmpc_records import Transitions

NONE = "components.probe=null"
MIXED = Spaces(
    obs={
        "room": Space(shape=(), dtype="int64", classes=5),
        "speed": Space(shape=(), dtype="float32"),
        "keys": Space(shape=(2,), dtype="int64", classes=(2, 3)),
    },
    action=STATES.action,
)


def agent(workflow: Tdmpc) -> dict[str, Any]:
    """All that is remembered, the probe left out."""
    state = copy.deepcopy(workflow.get_state())
    for part in ("components", "optimizers"):
        state[part].pop("probe", None)
    return bits({"workflow": state, "rng": workflow._context.rng.get_state()})


@pytest.mark.parametrize("spaces", [STATES, PICTURES, BOTH], ids=["states", "pictures", "both"])
def test_the_agent_is_the_same_with_a_probe_and_without(spaces: Spaces) -> None:
    """Weights, moments, statistics, random streams, metrics and actions; a skipped update among them."""
    watched, alone = small_tdmpc(spaces=spaces), small_tdmpc(NONE, spaces=spaces)
    assert "probe" in watched.modules()
    assert "probe" not in alone.modules()
    assert agent(watched) == agent(alone)
    for number in range(4):
        batch = synthetic_batch(number, spaces=spaces)
        if number == 2:
            batch.reward[1, 1] = float("nan")
        one, other = (workflow.update(batch, phase=phase()) for workflow in (watched, alone))
        told = {name: value for name, value in one.metrics.items() if not name.startswith("probe/")}
        assert bits(told) == bits(other.metrics)
        assert len(told) < len(one.metrics)
        assert agent(watched) == agent(alone), f"update {number}"
    obs = seen({key: value[:, 0] for key, value in synthetic_batch(9, spaces=spaces).obs.items()})
    actions = [one.policy(None).act(one.policy(None).initial(4), obs, mode="train")[1] for one in (watched, alone)]
    assert torch.equal(*actions)


def test_looking_changes_nothing() -> None:
    watched, alone = small_tdmpc(), small_tdmpc()
    batch = synthetic_batch(length=8)
    watched.open_loop(batch, is_context=torch.arange(8).expand(4, -1) < 2)
    assert watched.plans(one_of(batch), moments=3, shown=2) is not None
    before = agent(alone)
    assert agent(watched) == before
    assert bits(watched.modules()["probe"].state_dict()) == bits(alone.modules()["probe"].state_dict())


def one_of(batch: Batch) -> Batch:
    fields = {name: getattr(batch, name)[:1] for name in ("reward", "is_first", "is_last", "is_terminal", "action")}
    return Batch(obs={key: value[:1] for key, value in batch.obs.items()}, stored={}, index=batch.index, **fields)


@pytest.mark.parametrize("spaces", [STATES, PICTURES, MIXED], ids=["states", "pictures", "mixed"])
def test_it_learns_what_latents_stand_for(spaces: Spaces) -> None:
    """The agent stands still, so that only the probe can get better."""
    still = [f"optimizers.{name}.learning_rate=0" for name in ("model", "policy")]
    workflow = shaken_tdmpc(*still, "optimizers.probe.learning_rate=1e-2", spaces=spaces, size=0.1)
    batch = synthetic_batch(size=8, spaces=spaces)
    losses = [float(workflow.update(batch, phase=phase()).metrics["probe/loss"]) for _ in range(30)]
    assert losses[-1] < 0.6 * losses[0]


def with_bad_reward(batch: Batch) -> None:
    batch.reward[2, 1] = float("inf")


def test_a_skipped_update_leaves_the_probe_alone() -> None:
    workflow, batch = shaken_tdmpc(), synthetic_batch()
    with_bad_reward(batch)
    before = bits(workflow.get_state())
    metrics = workflow.update(batch, phase=phase()).metrics
    assert (metrics["skipped"], metrics["probe/skipped_share"]) == (1, 1)
    assert bits(workflow.get_state()) == before


def test_a_probe_that_fails_is_no_skipped_update() -> None:
    workflow = shaken_tdmpc()
    spoiled = next(workflow.modules()["probe"].parameters())
    handle = spoiled.register_hook(lambda gradient: gradient * float("nan"))
    before = bits(workflow.modules()["probe"].state_dict())
    metrics = workflow.update(synthetic_batch(), phase=phase()).metrics
    handle.remove()
    assert (metrics["skipped"], metrics["probe/skipped_share"]) == (0, 1)
    assert bits(workflow.modules()["probe"].state_dict()) == before
    assert workflow.update(synthetic_batch(), phase=phase()).metrics["probe/skipped_share"] == 0


def test_an_update_with_a_probe_asks_the_device_nothing() -> None:
    workflow, batch = shaken_tdmpc(spaces=BOTH), synthetic_batch(spaces=BOTH)
    with NoQuestions():
        metrics = workflow.update(batch, phase=phase()).metrics
    assert metrics["probe/skipped_share"] == 0


def test_it_learns_from_every_row_and_from_what_the_encoder_says() -> None:
    workflow = shaken_tdmpc()
    batch = synthetic_batch(size=6, length=4)
    given = Transitions.of(batch, workflow.model.prior.vector, lambda obs: None)
    noise = workflow._drawn(given)
    next_latents, targets = workflow._targets(given, noise)
    modelled = workflow.modelled(given, next_latents, targets, noise)
    latents, obs = probed_rows(given.obs, modelled)
    encoder = workflow._encoder
    for sequence, row in enumerate((0, 1, 2, 3, 0, 1)):
        assert torch.equal(obs["vector"][sequence], batch.obs["vector"][sequence, row])
        torch.testing.assert_close(latents[sequence], encoder({"vector": obs["vector"][sequence]}, {}).detach())
    assert not latents.requires_grad
    many = Transitions.of(synthetic_batch(size=MAX_ROWS + 6), workflow.model.prior.vector, lambda obs: None)
    noise = workflow._drawn(many)
    modelled = workflow.modelled(many, *workflow._targets(many, noise), noise)
    assert len(probed_rows(many.obs, modelled)[0]) == MAX_ROWS


@pytest.mark.parametrize("size", [39, 40, 48, 84], ids=str)
def test_pictures_of_any_size_come_back_in_that_size(size: int) -> None:
    spaces = Spaces(obs={"image": Space(shape=(size, size, 9), dtype="uint8")}, action=STATES.action)
    probe = small_tdmpc(spaces=spaces).modules()["probe"]
    assert isinstance(probe, ProbeDecoder)
    prediction: Any = probe(torch.rand(2, 3, 16))["image"]
    assert prediction.mean().shape == (2, 3, size, size, 9)
    target = torch.randint(256, (2, 3, size, size, 9), dtype=torch.uint8)
    expected = (prediction.mean() - target / 255).square().sum((-3, -2, -1))
    torch.testing.assert_close(prediction.loss(target), expected)


def test_an_optimiser_for_it_is_needed() -> None:
    with pytest.raises(ReverieError, match="`optimizers` must have model and policy and probe"):
        small_tdmpc("~optimizers.probe")
    assert "probe" not in small_tdmpc(NONE, "~optimizers.probe").optimizers()
    with pytest.raises(ReverieError, match="`optimizers` must have model and policy and probe"):
        small_tdmpc("+optimizers.actor=${optimizers.probe}")
