"""Weights that make up for what the sampler `prioritized` prefers, against their definition."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from made_episodes import write_dataset
from replay_homes import Flags, made_row

from reverie.buffers.base import Buffer, Sampler
from reverie.buffers.offline import OfflineBuffer
from reverie.buffers.prefetched import PrefetchedBuffer
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.build import assemble, phases_of
from reverie.commands.composition import composed
from reverie.orchestration.black_box import batch_from, batch_state
from reverie.orchestration.parts import check_phases
from reverie.orchestration.updating import copy_into
from reverie.types import Batch, ReverieError, Space, Spaces

ALPHA, BETA, LENGTH = 0.6, 0.4, 3


def filled(*, seed: int = 0, **more: Any) -> WorldModelSequenceBuffer:
    """Twelve rows of one stream in episodes of six: eight windows of three rows inside them, ten across."""
    rng = torch.Generator().manual_seed(seed)
    given = {"priority_exponent": ALPHA, "importance_exponent": BETA, **more}
    buffer = WorldModelSequenceBuffer(capacity=12, num_streams=1, rng=rng, **given)
    for number in range(12):
        buffer.append(made_row(number, [Flags(is_first=number % 6 == 0)]))
    return buffer


def judged(buffer: Buffer, *, crosses: bool) -> dict[int, float]:
    """Give some windows priorities. Back come those of all windows, by their first row."""
    for _ in range(6):
        batch = buffer.sample(4, LENGTH, sampler="prioritized", crosses_episodes=crosses)
        value = 0.5 + (batch.index.row[:, 0] % 5).double()
        buffer.prioritize(batch.index, value, crosses_episodes=crosses)
    (saved,) = buffer.get_state()["selection"]["priorities"]
    return {row: float(weight) for row, weight in enumerate(saved["weight"]) if weight > 0}


@pytest.mark.parametrize("crosses", [True, False])
def test_weights_are_the_odds_to_a_power_and_the_largest_is_one(crosses: bool) -> None:
    buffer = filled()
    chance = judged(buffer, crosses=crosses)
    assert len(chance) == (10 if crosses else 8)
    batch = buffer.sample(16, LENGTH, sampler="prioritized", crosses_episodes=crosses)
    total = sum(chance.values())
    raw = [(len(chance) * chance[row] / total) ** -BETA for row in batch.index.row[:, 0].tolist()]
    assert len(set(raw)) > 2
    assert batch.weight is not None
    torch.testing.assert_close(batch.weight, torch.tensor(raw) / max(raw))
    assert batch.weight.max() == 1


def test_windows_of_other_samplers_have_the_odds_of_one() -> None:
    buffer = filled()
    chance = judged(buffer, crosses=True)
    mixed: Sampler = (("uniform", 0.5), ("prioritized", 0.5))
    batch = buffer.sample(8, LENGTH, sampler=mixed)
    total = sum(chance.values())
    raw = [1.0] * 4 + [(len(chance) * chance[row] / total) ** -BETA for row in batch.index.row[4:, 0].tolist()]
    assert batch.weight is not None
    torch.testing.assert_close(batch.weight, torch.tensor(raw) / max(raw))


def test_without_an_exponent_there_are_none() -> None:
    buffer = filled(importance_exponent=0.0)
    judged(buffer, crosses=True)
    assert buffer.sample(4, LENGTH, sampler="prioritized").weight is None
    assert (filled().has_weights, buffer.has_weights) == (True, False)
    with pytest.raises(ReverieError, match="importance_exponent of a buffer"):
        filled(importance_exponent=-1.0)


def prefetched() -> PrefetchedBuffer:
    return PrefetchedBuffer(filled(), device=torch.device("cpu"))


def test_a_batch_that_was_fetched_ahead_keeps_its_weights_across_a_restart() -> None:
    one, other = prefetched(), prefetched()
    judged(one, crosses=True)
    state = one.get_state()
    expected = one.sample(4, LENGTH, sampler="prioritized")
    other.set_state(state)
    found = other.sample(4, LENGTH, sampler="prioritized")
    assert found.weight is not None
    assert expected.weight is not None
    assert torch.equal(found.weight, expected.weight)
    assert len(set(found.weight.tolist())) > 1


def weighted_batches() -> tuple[Batch, Batch]:
    buffer = filled()
    judged(buffer, crosses=True)
    one, other = (buffer.sample(4, LENGTH, sampler="prioritized") for _ in range(2))
    return one, other


def test_weights_go_wherever_a_batch_goes() -> None:
    """Into the batch of a captured update, and into a black box."""
    one, other = weighted_batches()
    assert one.weight is not None
    assert other.weight is not None
    place = one.weight.data_ptr()
    assert not torch.equal(one.weight, other.weight)
    copy_into(one, other)
    assert torch.equal(one.weight, other.weight)
    assert one.weight.data_ptr() == place
    state = batch_state(one)
    assert state is not None
    restored = batch_from(state).weight
    assert restored is not None
    assert torch.equal(restored, one.weight)


def test_a_dataset_has_them_too(tmp_path: Path) -> None:
    spaces = Spaces(obs={"vector": Space(shape=(3,), dtype="float32")}, action=Space(shape=(2,), dtype="float32"))
    folder = write_dataset(tmp_path / "data", spaces, lengths=(6, 6))
    buffer = OfflineBuffer(path=str(folder), rng=torch.Generator().manual_seed(0), importance_exponent=BETA)
    judged(buffer, crosses=False)
    weight = buffer.sample(8, LENGTH, sampler="prioritized", crosses_episodes=False).weight
    assert weight is not None
    assert len(set(weight.tolist())) > 1


def test_an_algorithm_that_does_not_read_them_is_refused() -> None:
    words = ["experiment=dreamer_cartpole", "size=debug", "training.sampler=prioritized"]
    config = composed("gym_CartPole-v1", [*words, "buffer.replay.importance_exponent=0.4"])
    parts = assemble(config, device=torch.device("cpu"), allow=None)
    with pytest.raises(ReverieError, match=r"buffer\.replay\.importance_exponent` must be 0: Dreamer"):
        check_phases(phases_of(config), parts)
    parts.close()
