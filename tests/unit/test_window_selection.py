"""Windows inside episodes, by age, by priority and in mixtures, against a plain list of all that was appended."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from reverie.buffers.base import Sampler
from reverie.buffers.selection import shares
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.types import Batch, Row

EXPONENT = 0.5
Window = tuple[int, int]
"""(stream, number of the first row)"""


def row(number: int, firsts: list[bool]) -> Row:
    identity = number * 10.0 + torch.arange(len(firsts))
    no = torch.zeros(len(firsts), dtype=torch.bool)
    return Row(
        obs={"number": torch.full((len(firsts),), number)},
        reward=identity,
        is_first=torch.tensor(firsts),
        is_last=no,
        is_terminal=no,
        action=identity,
    )


def buffer_of(length: int, num_streams: int, *, seed: int = 0, exponent: float = EXPONENT) -> WorldModelSequenceBuffer:
    rng = torch.Generator().manual_seed(seed)
    capacity = length * num_streams
    return WorldModelSequenceBuffer(capacity=capacity, num_streams=num_streams, rng=rng, priority_exponent=exponent)


def windows_of(batch: Batch) -> list[Window]:
    return list(zip(batch.index.stream.tolist(), batch.obs["number"][:, 0].tolist(), strict=True))


class SelectionMachine(RuleBasedStateMachine):
    """Every window that is drawn is one that the list of rows allows, and every priority is the one it was given."""

    @initialize(length=st.integers(2, 12), num_streams=st.integers(1, 3), window=st.integers(1, 5))
    def begin(self, length: int, num_streams: int, window: int) -> None:
        self.length, self.num_streams, self.window = length, num_streams, min(window, length)
        self.buffer = buffer_of(length, num_streams)
        self.firsts: list[list[bool]] = []
        self.priorities: dict[bool, dict[Window, float]] = {}
        """By whether episodes are crossed, once prioritized windows were asked for."""
        self.highest: dict[bool, float] = {}
        self.saved: Any = None

    def windows(self, *, crosses: bool) -> list[Window]:
        oldest = max(0, len(self.firsts) - self.length)
        found = [
            (stream, start)
            for start in range(oldest, len(self.firsts) - self.window + 1)
            for stream in range(self.num_streams)
        ]
        if crosses:
            return found
        return [(n, start) for n, start in found if not any(self.first(n, start + t) for t in range(1, self.window))]

    def first(self, stream: int, number: int) -> bool:
        return self.firsts[number][stream]

    @rule(data=st.data(), count=st.integers(1, 7))
    def append(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            begun = [not self.firsts] * self.num_streams
            drawn = data.draw(st.lists(st.booleans(), min_size=self.num_streams, max_size=self.num_streams))
            self.firsts.append([one or other for one, other in zip(begun, drawn, strict=True)])
            self.buffer.append(row(len(self.firsts) - 1, self.firsts[-1]))
            for crosses, priorities in self.priorities.items():
                now = self.windows(crosses=crosses)
                kept = {window: priorities.get(window, self.highest[crosses]) for window in now}
                self.priorities[crosses] = kept

    @rule(crosses=st.booleans(), sampler=st.sampled_from(["uniform", "recent"]), size=st.integers(1, 4))
    def sample(self, crosses: bool, sampler: str, size: int) -> None:
        allowed = self.windows(crosses=crosses)
        can = self.buffer.can_sample(size, self.window, crosses_episodes=crosses)
        assert can == (len(allowed) >= size)
        if can:
            batch = self.buffer.sample(size, self.window, sampler=sampler, crosses_episodes=crosses)
            assert set(windows_of(batch)) <= set(allowed)
            numbers = batch.obs["number"]
            assert torch.equal(numbers - numbers[:, :1], torch.arange(self.window).expand(size, -1))

    @rule(crosses=st.booleans(), value=st.sampled_from([0.0, 0.5, 4.0, math.nan, math.inf]))
    def prioritize(self, crosses: bool, value: float) -> None:
        allowed = self.windows(crosses=crosses)
        if not allowed:
            return
        if crosses not in self.priorities:
            self.priorities[crosses], self.highest[crosses] = dict.fromkeys(allowed, 1.0), 1.0
        batch = self.buffer.sample(1, self.window, sampler="prioritized", crosses_episodes=crosses)
        (window,) = windows_of(batch)
        assert window in allowed
        self.buffer.prioritize(batch.index, torch.tensor([value]), crosses_episodes=crosses)
        given = value if math.isfinite(value) else self.highest[crosses]
        self.priorities[crosses][window] = max(given, 1e-6)
        self.highest[crosses] = max(self.highest[crosses], given)
        self.check_weights(crosses)

    def check_weights(self, crosses: bool) -> None:
        weight = self.buffer._selection._priorities[self.window, crosses]._tree.weight
        expected = torch.zeros(self.num_streams, self.length, dtype=torch.float64)
        for (stream, start), priority in self.priorities[crosses].items():
            expected[stream, start % self.length] = priority**EXPONENT
        torch.testing.assert_close(weight, expected.flatten())

    @rule()
    def save(self) -> None:
        chunks = {index: self.buffer.chunk(index) for index in self.buffer.closed_chunks()}
        state = self.buffer.get_state(), self.buffer._rng.get_state(), chunks
        self.saved = copy.deepcopy((state, self.firsts, self.priorities, self.highest))

    @precondition(lambda self: self.saved is not None)
    @rule()
    def restore_and_draw_the_same(self) -> None:
        """The restored buffer goes on as the one that was saved would have: here both are at the same place."""
        assert self.saved is not None
        (state, rng, chunks), self.firsts, self.priorities, self.highest = copy.deepcopy(self.saved)
        self.buffer = buffer_of(self.length, self.num_streams, seed=1)
        for index, arrays in chunks.items():
            self.buffer.load_chunk(index, arrays)
        self.buffer.set_state(state)
        self.buffer._rng.set_state(rng)
        for crosses in self.priorities:
            self.check_weights(crosses)


TestSelection = SelectionMachine.TestCase
TestSelection.settings = settings(max_examples=80, stateful_step_count=25, deadline=None)


def filled(rows: int, *, length: int = 40, num_streams: int = 2, every: int = 7) -> WorldModelSequenceBuffer:
    """Episodes of ``every`` rows in the first stream and one row more in each further one."""
    buffer = buffer_of(length, num_streams, exponent=1.0)
    for number in range(rows):
        buffer.append(row(number, [number % (every + stream) == 0 for stream in range(num_streams)]))
    return buffer


def test_what_is_kept_up_with_appends_equals_what_is_made_from_the_rows() -> None:
    """Numbering windows as they come, or all at once from the rows of a checkpoint, gives the same draws."""
    early, late = filled(10), filled(10)
    early.sample(1, 4, sampler="uniform", crosses_episodes=False)
    for number in range(10, 95):
        for buffer in (early, late):
            buffer.append(row(number, [number % 7 == 0, number % 8 == 0]))
    late._rng.set_state(early._rng.get_state())
    drawn = [buffer.sample(200, 4, sampler="uniform", crosses_episodes=False) for buffer in (early, late)]
    assert windows_of(drawn[0]) == windows_of(drawn[1])


@pytest.mark.parametrize(
    ("size", "sampler", "expected"),
    [
        (16, "recent", [("recent", 16)]),
        (16, (("uniform", 0.5), ("recent", 0.3), ("prioritized", 0.2)), [8, 5, 3]),
        (3, (("uniform", 0.5), ("recent", 0.5)), [2, 1]),
        (1, (("recent", 0.1), ("uniform", 0.9)), [("uniform", 1)]),
    ],
)
def test_fractions_become_whole_numbers_that_fill_the_batch(
    size: int, sampler: Sampler, expected: list[object]
) -> None:
    found = shares(size, sampler)
    assert sum(count for _, count in found) == size
    assert found == expected or [count for _, count in found] == expected


def test_a_mixture_takes_its_windows_from_each_sampler() -> None:
    buffer = filled(95)
    buffer.sample(2, 4, sampler="fresh_first")
    for number in range(95, 104):
        buffer.append(row(number, [False, False]))
    drawn = windows_of(buffer.sample(8, 4, sampler=(("fresh_first", 0.5), ("recent", 0.5))))
    assert drawn[:4] == [(0, 92), (1, 92), (0, 96), (1, 96)]
    assert len(drawn) == 8


@pytest.mark.parametrize("appended", [4, 12, 17])
@pytest.mark.parametrize("length", [1, 3])
def test_a_sweep_comes_to_every_window_in_turn_and_begins_again(appended: int, length: int) -> None:
    """Also when the ring has wrapped: 12 rows of each of two streams are held."""
    buffer = buffer_of(12, 2)
    for number in range(appended):
        buffer.append(row(number, [False, False]))
    held = min(appended, 12)
    oldest = appended - held
    count = held // length * 2
    expected = [(number % 2, oldest + number // 2 * length) for number in range(count)]
    drawn = [window for _ in range(count) for window in windows_of(buffer.sample(2, length, sampler="sweep"))]
    assert drawn == expected * 2


def test_a_sweep_goes_on_where_it_was_saved() -> None:
    one, other = buffer_of(6, 1), buffer_of(6, 1)
    for buffer in (one, other):
        for number in range(6):
            buffer.append(row(number, [False]))
    one.sample(4, 1, sampler="sweep")
    other.set_state(copy.deepcopy(one.get_state()))
    found = [windows_of(buffer.sample(4, 1, sampler="sweep")) for buffer in (one, other)]
    assert found[0] == found[1] == [(0, 4), (0, 5), (0, 0), (0, 1)]
