"""Dreamer with its eyes closed: what the predictions depend on, and what they must not depend on."""

from __future__ import annotations

import copy

import pytest
import torch
from small_dreamer import CPU, SPACES, shaken_dreamer, synthetic_batch
from torch import Tensor

from reverie.components.representation_learners.rssm import Latent
from reverie.runtime.rng import RandomStreams
from reverie.types import Batch, Space, Spaces
from reverie.workflows.dreamer import Dreamer, without_context
from reverie.workflows.dreamer_open_loop import most_likely
from reverie.workflows.open_loop import OpenLoop, PredictsOpenLoop

ALL_KINDS = Spaces(
    obs={
        "image": Space(shape=(32, 32, 3), dtype="uint8"),
        "keys": Space(shape=(2,), dtype="int64", classes=(2, 3)),
        "room": Space(shape=(), dtype="int64", classes=5),
        "speed": Space(shape=(), dtype="float32"),
        "vector": Space(shape=(4,), dtype="float32"),
    },
    action=Space(shape=(2,), dtype="float32"),
)
SEEN = 3
"""Rows at the start that the model may see."""


def unbroken_batch(spaces: Spaces = SPACES) -> Batch:
    batch = synthetic_batch(length=9, spaces=spaces)
    for flag in (batch.is_first, batch.is_last, batch.is_terminal):
        flag.zero_()
    return batch


def lively_dreamer(spaces: Spaces = SPACES) -> Dreamer:
    """Its most likely latents differ from row to row: a small model's offsets would drown what it sees."""
    workflow = shaken_dreamer(size=1.0, spaces=spaces)
    for name, parameter in workflow._rssm.named_parameters():
        if name.startswith(("posterior", "prior")) and name.endswith("bias"):
            parameter.data.zero_()
    return workflow


def mask(batch: Batch, *rows: int) -> Tensor:
    is_context = torch.zeros(batch.reward.shape[0], batch.reward.shape[1] - 1, dtype=torch.bool)
    is_context[:, list(rows or range(SEEN))] = True
    return is_context


def changed(batch: Batch, name: str, row: int) -> Batch:
    """Another value of ``name`` in one row, counted without the context row."""
    other = copy.deepcopy(batch)
    values = other.obs["vector"] if name == "obs" else other.action
    values[:, row + 1] = 9 - 9 * values[:, row + 1] if name == "obs" else (values[:, row + 1] + 1) % 3
    return other


def differing_rows(one: OpenLoop, other: OpenLoop) -> set[int]:
    tensors = zip(
        [*one.obs.values(), one.reward, one.live], [*other.obs.values(), other.reward, other.live], strict=True
    )
    is_different = torch.stack([(a != b).flatten(2).any(-1) if a.ndim > 2 else a != b for a, b in tensors]).any(0)
    return set(torch.nonzero(is_different.any(0)).flatten().tolist())


def test_rows_that_are_not_seen_change_nothing_and_those_that_are_do() -> None:
    workflow, batch = lively_dreamer(), unbroken_batch()
    assert isinstance(workflow, PredictsOpenLoop)
    original = workflow.open_loop(batch, is_context=mask(batch))
    for row in range(SEEN, 8):
        assert differing_rows(original, workflow.open_loop(changed(batch, "obs", row), is_context=mask(batch))) == set()
    for row in range(SEEN):
        seen = workflow.open_loop(changed(batch, "obs", row), is_context=mask(batch))
        assert row in differing_rows(original, seen) <= set(range(row, 8))


def test_recorded_actions_change_the_rows_after_them() -> None:
    workflow, batch = lively_dreamer(), unbroken_batch()
    original = workflow.open_loop(batch, is_context=mask(batch))
    for row in range(7):
        rows = differing_rows(original, workflow.open_loop(changed(batch, "action", row), is_context=mask(batch)))
        assert row + 1 in rows
        assert min(rows) == row + 1
    last = workflow.open_loop(changed(batch, "action", 7), is_context=mask(batch))
    assert differing_rows(original, last) == set()


def test_predictions_are_those_of_the_parts_called_one_by_one() -> None:
    """Observe three rows, then imagine one after the other with the most likely latents."""
    workflow, batch = lively_dreamer(), unbroken_batch()
    found = workflow.open_loop(batch, is_context=mask(batch))
    seen = without_context(batch)
    with torch.no_grad():
        latents = by_hand(workflow, batch, seen)
        decoded = most_likely(workflow._decoder(latents.deter, latents.stoch_vector)["vector"])
        assert torch.equal(found.reward, workflow._reward_head(latents.feature).mean())
        assert torch.allclose(found.obs["vector"], decoded, rtol=1e-6)
        live = workflow._continue_head(latents.feature).mean() / found.discount
    assert torch.equal(found.live, live.clamp(max=1))
    assert found.discount == 1 - 1 / 333


def by_hand(workflow: Dreamer, batch: Batch, seen: Batch) -> Latent:
    carry = workflow._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
    action = workflow._actor.vector(batch.action[:, :-1])
    tokens, is_first = workflow._encoder(seen.obs), seen.is_first[:, :SEEN]
    observed, _ = workflow._rssm.observe(carry, tokens[:, :SEEN], action[:, :SEEN], is_first, None)
    deters, stochs = list(observed.deter.unbind(1)), list(observed.stoch.unbind(1))
    for step in range(SEEN, 8):
        latent = workflow._rssm.imagine(Latent(deter=deters[-1], stoch=stochs[-1]), action[:, step], None)
        deters.append(latent.deter)
        stochs.append(latent.stoch)
    return Latent(deter=torch.stack(deters, 1), stoch=torch.stack(stochs, 1))


def test_after_a_new_beginning_nothing_before_it_counts() -> None:
    workflow, batch = lively_dreamer(), unbroken_batch()
    batch.is_first[:, 5] = True  # row 4 without the context row
    is_context = mask(batch, 0, 1, 4, 5)
    original = workflow.open_loop(batch, is_context=is_context)
    other = workflow.open_loop(changed(changed(batch, "obs", 1), "action", 3), is_context=is_context)
    assert differing_rows(original, other) == {1, 2, 3}


def test_every_kind_of_observation_is_predicted_in_the_shape_of_the_rows() -> None:
    workflow, batch = lively_dreamer(ALL_KINDS), unbroken_batch(ALL_KINDS)
    found = workflow.open_loop(batch, is_context=mask(batch))
    seen = without_context(batch)
    assert found.obs.keys() == ALL_KINDS.obs.keys()
    for key, value in found.obs.items():
        assert value.shape == seen.obs[key].shape, key
    assert (found.obs["image"].min() >= 0) & (found.obs["image"].max() <= 1)
    assert not found.obs["room"].is_floating_point()
    assert set(found.obs["room"].unique().tolist()) <= set(range(5))
    assert (found.obs["keys"].amax((0, 1)) <= torch.tensor([1, 2])).all()
    assert (found.live > 0).all()
    assert (found.live <= 1).all()


def test_asking_draws_nothing_and_changes_no_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow, batch = lively_dreamer(), unbroken_batch()
    streams = workflow._context.rng
    before = copy.deepcopy((streams.get_state(), workflow.get_state()["components"]))
    monkeypatch.setattr(RandomStreams, "stream", lambda *_: pytest.fail("a random stream was asked for"))
    first = workflow.open_loop(batch, is_context=mask(batch))
    assert differing_rows(first, workflow.open_loop(batch, is_context=mask(batch))) == set()
    assert all(torch.equal(value, before[0][name]) for name, value in streams.get_state().items())
    for name, part in workflow.get_state()["components"].items():
        assert all(torch.equal(value, before[1][name][key]) for key, value in part.items())
    assert not first.reward.requires_grad
    assert first.reward.device == CPU
