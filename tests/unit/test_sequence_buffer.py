"""The sequence buffer by example: exact continuation, chunks, fresh windows, what is refused."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import pytest
import torch
from replay_homes import AsOnGpu
from torch import Tensor

from reverie.buffers import world_model_sequence
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.types import Batch, ReverieError, Row, State

FLAGS = ("is_first", "is_last", "is_terminal")


def row(number: int, num_streams: int, flags: tuple[bool, bool, bool] = (False, False, False)) -> Row:
    """Row ``number`` of every stream; each value tells which row and which stream it belongs to."""
    identity = number * 10.0 + torch.arange(num_streams)
    is_first, is_last, is_terminal = (torch.full((num_streams,), flag) for flag in flags)
    return Row(
        obs={"vector": torch.stack([identity, -identity], -1), "count": identity.long()},
        reward=identity + 0.5,
        is_first=is_first,
        is_last=is_last,
        is_terminal=is_terminal,
        action=identity.long() % 7,
        stored={"latent": identity.unsqueeze(-1) + 0.25, "kind": (identity % 200).to(torch.uint8)},
    )


def buffer_of(
    *, length: int, num_streams: int = 1, rows: int = 0, chunk_rows: int = 1024, seed: int = 0
) -> WorldModelSequenceBuffer:
    with mock.patch.object(world_model_sequence, "CHUNK_ROWS", chunk_rows):
        buffer = WorldModelSequenceBuffer(
            capacity=length * num_streams, num_streams=num_streams, rng=torch.Generator().manual_seed(seed)
        )
    for number in range(rows):
        buffer.append(row(number, num_streams))
    return buffer


def row_numbers(batch: Batch) -> list[list[int]]:
    return (batch.obs["count"] // 10).tolist()


def flat(batch: Batch) -> dict[str, Tensor]:
    parts = {name: getattr(batch, name) for name in ("reward", "action", *FLAGS)}
    return parts | batch.obs | batch.stored | {"stream": batch.index.stream, "row": batch.index.row}


def assert_same(one: Batch, other: Batch) -> None:
    ours, theirs = flat(one), flat(other)
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        assert value.dtype == theirs[name].dtype, name
        assert torch.equal(value, theirs[name]), name


class Disk:
    """Write-once chunks and checkpoints, as the checkpoint manager keeps them."""

    def __init__(self) -> None:
        self.chunks: dict[int, dict[str, Tensor]] = {}
        self.needed: list[int] = []
        self.state: State = {}
        self.rng = torch.Tensor()

    def save(self, buffer: WorldModelSequenceBuffer) -> None:
        self.needed = list(buffer.closed_chunks())
        for index in self.needed:
            if index not in self.chunks:
                self.chunks[index] = {name: value.clone() for name, value in buffer.chunk(index).items()}
        self.state = copy.deepcopy(buffer.get_state())
        self.rng = buffer._rng.get_state()

    def restored(self, fresh: WorldModelSequenceBuffer) -> WorldModelSequenceBuffer:
        for index in self.needed:
            fresh.load_chunk(index, self.chunks[index])
        fresh.set_state(copy.deepcopy(self.state))
        fresh._rng.set_state(self.rng)
        return fresh


# Exact continuation


@pytest.mark.parametrize(("length", "num_streams", "chunk_rows"), [(20, 1, 8), (20, 3, 8), (8, 2, 1024), (7, 2, 6)])
@pytest.mark.parametrize("rows_before", [0, 3, 8, 19, 45])
def test_a_restored_buffer_draws_the_same_batches(
    length: int, num_streams: int, chunk_rows: int, rows_before: int
) -> None:
    sizes = {"length": length, "num_streams": num_streams, "chunk_rows": chunk_rows}
    one, disk = buffer_of(**sizes, rows=rows_before), Disk()
    if one.can_sample(2, 3):
        one.sample(2, 3, sampler="fresh_first")
    disk.save(one)
    other = disk.restored(buffer_of(**sizes, seed=5))
    for number in range(rows_before, rows_before + 12):
        for buffer in (one, other):
            buffer.append(row(number, num_streams))
        if one.can_sample(3, 3):
            batch = one.sample(3, 3, sampler="fresh_first")
            assert_same(batch, other.sample(3, 3, sampler="fresh_first"))
            for buffer in (one, other):
                buffer.write_back(batch.index, {"latent": -batch.stored["latent"][:, 1:]})
    assert torch.equal(one._rng.get_state(), other._rng.get_state())


def test_a_stream_that_is_not_restored_shows() -> None:
    one, disk = buffer_of(length=50, rows=50), Disk()
    one.sample(4, 3, sampler="uniform")
    disk.save(one)
    disk.rng = torch.Generator().manual_seed(0).get_state()
    other = disk.restored(buffer_of(length=50))
    drawn = [buffer.sample(4, 3, sampler="uniform").index.row for buffer in (one, other)]
    assert not torch.equal(drawn[0], drawn[1])


def test_restoring_after_more_rows_than_fit_since_the_checkpoint_before() -> None:
    """Chunks that were overwritten before they were ever saved are partly, or wholly, gone."""
    sizes = {"length": 10, "num_streams": 2, "chunk_rows": 8}
    one, disk = buffer_of(**sizes, rows=5), Disk()
    disk.save(one)
    for number in range(5, 38):
        one.append(row(number, 2))
    disk.save(one)
    other = disk.restored(buffer_of(**sizes, seed=3))
    for _ in range(20):
        assert_same(one.sample(4, 5, sampler="uniform"), other.sample(4, 5, sampler="uniform"))


def test_chunks_never_change_once_closed_and_their_numbers_are_never_used_again() -> None:
    buffer, seen = buffer_of(length=12, chunk_rows=4), {}
    for number in range(60):
        buffer.append(row(number, 1))
        oldest = max(0, number + 1 - 12)
        for index in buffer.closed_chunks():
            count = buffer.chunk(index)["obs/count"][0] // 10
            assert count.tolist() == list(range(max(index * 4, oldest), index * 4 + 4))
            seen.setdefault(index, count)
    assert list(seen) == list(range(15))


def test_a_checkpoint_copies_rows_but_not_latents() -> None:
    """Latents may fill half of the memory, and they are written before anything else happens."""
    buffer = buffer_of(length=6, rows=5)
    state = buffer.get_state()
    before = copy.deepcopy(state)
    for number in range(5, 9):
        buffer.append(row(number, 1))
    assert all(torch.equal(value, before["tail"][name]) for name, value in state["tail"].items())
    assert state["stored"]["latent"].flatten().tolist() == [60.25, 70.25, 80.25, 30.25, 40.25]


# Sampling


def test_fresh_windows_that_were_overwritten_are_not_handed_out() -> None:
    buffer = buffer_of(length=10, rows=5)
    assert row_numbers(buffer.sample(1, 5, sampler="fresh_first")) == [[0, 1, 2, 3, 4]]
    for number in range(5, 43):
        buffer.append(row(number, 1))
    assert row_numbers(buffer.sample(2, 5, sampler="fresh_first"))[0] == [35, 36, 37, 38, 39]


def test_both_samplers_consume_the_same_draws() -> None:
    """Whether windows were fresh must not shift what is drawn later."""
    one, other = (buffer_of(length=20, rows=20) for _ in range(2))
    one.sample(3, 4, sampler="uniform")
    other.sample(3, 4, sampler="fresh_first")
    assert torch.equal(one._rng.get_state(), other._rng.get_state())


def test_an_abandoned_episode_ends_where_the_next_one_begins() -> None:
    buffer = buffer_of(length=6)
    for number in range(6):
        buffer.append(row(number, 1, (number == 3, False, False)))
    batch = buffer.sample(1, 6, sampler="uniform")
    assert batch.is_last.tolist() == [[False, False, True, False, False, False]]
    assert not batch.is_terminal.any()
    assert buffer._rows is not None
    assert not buffer._rows.column("is_last", 0, 6).any(), "what was stored stays as it came"


@pytest.mark.parametrize(
    ("rows", "size", "length", "expected"),
    [
        (0, 1, 1, False),
        (1, 1, 1, True),
        (1, 3, 1, False),
        (4, 1, 5, False),
        (5, 2, 5, True),
        (5, 3, 5, False),
        (6, 4, 5, True),
        (50, 4, 7, True),
        (50, 5, 7, False),
        (50, 1, 8, True),
        (50, 1, 9, False),
    ],
)
def test_can_sample_needs_as_many_different_windows(rows: int, size: int, length: int, expected: bool) -> None:
    """Two streams of eight rows."""
    assert buffer_of(length=8, num_streams=2, rows=rows).can_sample(size, length) == expected


def test_write_back_replaces_the_last_rows_and_keeps_the_type() -> None:
    buffer = buffer_of(length=8, rows=8)
    batch = buffer.sample(1, 4, sampler="uniform")
    buffer.write_back(batch.index, {"kind": torch.full((1, 3), 77, dtype=torch.int64)})
    again = buffer.rows_at(batch.index)
    assert again.stored["kind"].dtype == torch.uint8
    assert again.stored["kind"].tolist() == [[int(batch.stored["kind"][0, 0]), 77, 77, 77]]
    assert torch.equal(again.stored["latent"], batch.stored["latent"])


def test_a_capacity_below_the_number_of_streams_is_refused() -> None:
    with pytest.raises(ReverieError, match=r"capacity \(3\).*\(4\)"):
        WorldModelSequenceBuffer(capacity=3, num_streams=4, rng=torch.Generator())


@pytest.mark.parametrize("kind", [WorldModelSequenceBuffer, AsOnGpu])
def test_a_row_without_stored_values_is_kept(kind: type[WorldModelSequenceBuffer]) -> None:
    buffer = kind(capacity=4, num_streams=1, rng=torch.Generator())
    bare: Any = row(0, 1)
    bare.stored = {}
    buffer.append(bare)
    batch = buffer.sample(1, 1, sampler="uniform")
    assert batch.stored == {}
    assert batch.reward.tolist() == [[0.5]]
