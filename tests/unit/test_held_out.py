"""The rows of an evaluation: which sequences are taken from them, and which of their rows are imagined."""

from __future__ import annotations

import pytest
import torch

from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.orchestration.held_out import HeldOut, leads
from reverie.types import Row

STREAMS = 3


def held_out(rows: int, *, capacity: int = 40, episode: int = 8, older: int = 5) -> HeldOut:
    """``older`` rows of an earlier evaluation, then ``rows`` of this one, in episodes of ``episode`` rows.

    A row's observation is 1000 times its stream plus its number; those of the earlier evaluation are negative.
    """
    buffer = WorldModelSequenceBuffer(capacity=capacity * STREAMS, num_streams=STREAMS, rng=torch.Generator())
    for number in range(-older, rows):
        flag = torch.full((STREAMS,), number % episode == 0)
        value = 1000 * torch.arange(STREAMS) + number
        buffer.append(
            Row(
                obs={"number": value.unsqueeze(1).float()},
                reward=torch.zeros(STREAMS),
                is_first=flag,
                is_last=torch.full((STREAMS,), number % episode == episode - 1),
                is_terminal=torch.zeros(STREAMS, dtype=torch.bool),
                action=torch.zeros(STREAMS, dtype=torch.int64),
            )
        )
    return HeldOut(buffer=buffer, num_streams=STREAMS, num_rows=min(rows, capacity))


def numbers(batch: Row) -> list[list[int]]:
    return batch.obs["number"][..., 0].long().tolist()


@pytest.mark.parametrize("rows", [6, 20, 40, 77])
@pytest.mark.parametrize("before", [0, 1, 2])
def test_sequences_are_consecutive_rows_of_this_evaluation_in_different_places(rows: int, before: int) -> None:
    data = held_out(rows)
    span = data.sequences(7, 5, before=before)
    assert span is not None
    found = numbers(data.rows(span))
    oldest, newest = max(0, rows - 40), rows - 1
    for sequence, stream in zip(found, span.stream.tolist(), strict=True):
        assert sequence == list(range(sequence[0], sequence[0] + 5))
        assert sequence[0] // 1000 == stream
        assert sequence[0] % 1000 >= oldest
        assert sequence[-1] % 1000 <= newest
    assert len({tuple(sequence) for sequence in found}) == len(found) >= min(7, STREAMS)
    assert max(sequence[-1] % 1000 for sequence in found) == newest
    assert set(span.stream.tolist()) == set(range(STREAMS))


def test_rows_in_front_are_those_before_and_the_first_row_is_repeated() -> None:
    data = held_out(20)
    span = data.sequences(3, 4, before=2)
    assert span is not None
    assert numbers(data.rows(span, before=2)) == [
        [0, 0, 0, 1, 2, 3],
        [1006, 1007, 1008, 1009, 1010, 1011],
        [2014, 2015, 2016, 2017, 2018, 2019],
    ]


def test_where_the_beginning_is_lost_the_oldest_rows_are_left_in_front() -> None:
    data = held_out(77)
    span = data.sequences(1, 4, before=2)
    assert span is not None
    assert numbers(data.rows(span, before=2)) == [[37, 38, 39, 40, 41, 42]]


def test_short_evaluations_give_short_sequences_and_empty_ones_none() -> None:
    data = held_out(3)
    span = data.sequences(9, 50, before=1)
    assert span is not None
    assert numbers(data.rows(span)) == [[0, 1, 2], [1000, 1001, 1002], [2000, 2001, 2002]]
    assert held_out(0).sequences(9, 50, before=1) is None


def test_the_first_episode_ends_with_its_last_row_or_at_the_limit() -> None:
    data = held_out(30)
    whole, part = data.first_episode(100, before=1), data.first_episode(5, before=1)
    assert whole is not None
    assert part is not None
    assert numbers(data.rows(whole)) == [list(range(8))]
    assert numbers(data.rows(part)) == [list(range(5))]


def test_reading_changes_nothing() -> None:
    data = held_out(30)
    assert isinstance(data.buffer, WorldModelSequenceBuffer)
    state, stream = data.buffer.get_state(), data.buffer._rng.get_state()
    span = data.sequences(5, 4, before=1)
    assert span is not None
    data.rows(span, before=1)
    assert torch.equal(data.buffer._rng.get_state(), stream)
    assert data.buffer.get_state()["selection"] == state["selection"]
    assert data.buffer.get_state()["count"] == state["count"]


def test_leads_begin_anew_with_an_episode_and_after_a_period() -> None:
    is_first = torch.zeros(3, 9, dtype=torch.bool)
    is_first[1, 4] = True
    is_first[2, 0] = is_first[2, 1] = True
    assert leads(is_first, context=2, period=100).tolist() == [
        [0, 0, 1, 2, 3, 4, 5, 6, 7],
        [0, 0, 1, 2, 0, 0, 1, 2, 3],
        [0, 0, 0, 1, 2, 3, 4, 5, 6],
    ]
    assert leads(is_first, context=2, period=5).tolist() == [
        [0, 0, 1, 2, 3, 0, 0, 1, 2],
        [0, 0, 1, 2, 0, 0, 1, 2, 3],
        [0, 0, 0, 1, 2, 3, 0, 0, 1],
    ]
