"""Replay against a plain list of all rows: whatever is appended, drawn, written back, prioritized, saved and restored.

The machine knows buffers by their public interface alone, so that every home of rows must pass it.
"""

from __future__ import annotations

import copy
import dataclasses
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from plain_buffer import Draw, Place, PlainBuffer, Request, bits, values_of
from replay_homes import HOMES, Flags, Home, Sizes, made_row, make_buffer, make_model
from torch import Generator, Tensor

from reverie.buffers.base import Buffer, Sampler
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.types import Batch, Row, RowIndex, State

QUICK = settings(max_examples=35, stateful_step_count=40, deadline=None, derandomize=True)
THOROUGH = settings(QUICK, max_examples=500, stateful_step_count=60)
HUNT = settings(
    QUICK,
    max_examples=300,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
"""For planted bugs: that one is found matters, not its smallest example."""

EVENTS = st.sampled_from(["goes_on", "goes_on", "goes_on", "ends", "terminates", "is_abandoned"])
SOME_EVENTS = st.lists(st.tuples(EVENTS, EVENTS, EVENTS), max_size=25)
SIZES = st.builds(
    Sizes, capacity=st.integers(3, 60), num_streams=st.integers(1, 3), chunk_rows=st.sampled_from([1, 3, 7, 16, 1024])
)
INSIDE: list[Sampler] = [
    "uniform",
    "recent",
    "prioritized",
    (("uniform", 0.5), ("prioritized", 0.5)),
    (("recent", 0.3), ("prioritized", 0.7)),
]
FRESH: list[Sampler] = [
    "fresh_first",
    (("fresh_first", 0.4), ("uniform", 0.6)),
    (("prioritized", 0.25), ("fresh_first", 0.5), ("recent", 0.25)),
]
LENGTHS = st.one_of(st.integers(1, 5), st.integers(1, 20))


def asked(samplers: list[Sampler], *, crosses: bool) -> st.SearchStrategy[Request]:
    sampler, size = st.sampled_from(samplers), st.integers(1, 5)
    return st.builds(Request, size=size, length=LENGTHS, sampler=sampler, crosses=st.just(crosses))


REQUESTS = st.tuples(asked(FRESH, crosses=True), asked(INSIDE, crosses=True), asked(INSIDE, crosses=False))
"""All that one machine asks for: training asks for the same again and again."""
WHICH = st.integers(0, 2)
NAMES = st.sampled_from([("deter",), ("code",), ("deter", "code")])
DTYPES = {name: value.dtype for name, value in values_of(made_row(0, [Flags()])).items()}
PRIORITIES = st.lists(st.sampled_from([0.0, 0.5, 4.0, 1e30, float("nan"), float("inf")]), min_size=5, max_size=5)


@dataclass(kw_only=True)
class Side:
    """A buffer, what it draws with, and who writes its checkpoints."""

    buffer: Buffer
    rng: Generator
    checkpoints: CheckpointManager


@dataclass(frozen=True, kw_only=True)
class Sampled:
    request: Request
    index: list[RowIndex]
    """Of each side."""
    windows: list[Place]


class ReplayMachine(RuleBasedStateMachine):
    """After a checkpoint the buffer that was restored from it goes along with the one that was saved."""

    def __init__(self, home: Home) -> None:
        super().__init__()
        self.home = home
        self.folder = Path(tempfile.mkdtemp(prefix="reverie-replay-"))
        self.made = self.appended = self.written = self.checkpoints = 0
        self.sides: list[Side] = []
        self.sampled: Sampled | None = None
        self.ahead: dict[Request, Draw] = {}
        """Of a home that prefetches: batches that are drawn and not yet handed out."""
        self.saved: tuple[PlainBuffer, dict[Request, Draw], list[bool]] | None = None

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @initialize(sizes=SIZES, requests=REQUESTS, is_large=st.booleans(), events=SOME_EVENTS)
    def begin(
        self, sizes: Sizes, requests: tuple[Request, ...], is_large: bool, events: list[tuple[str, str, str]]
    ) -> None:
        self.sizes, self.requests, self.is_large = sizes, requests, is_large
        self.model = make_model(sizes)
        self.has_ended = [True] * sizes.num_streams
        self.sides = [self.new_side()]
        self.add(events)

    # What can happen

    @rule(events=SOME_EVENTS)
    def append(self, events: list[tuple[str, str, str]]) -> None:
        self.add(events)

    @rule(which=WHICH)
    def sample(self, which: int) -> None:
        self.drawn(which)

    @rule(which=WHICH, rows=st.integers(1, 20), names=NAMES, priorities=PRIORITIES)
    def update(self, which: int, rows: int, names: tuple[str, ...], priorities: list[float]) -> None:
        """Sample, write back and prioritize, as training does."""
        sampled = self.drawn(which)
        if sampled is not None:
            self.learn(sampled, rows, names, priorities)

    @precondition(lambda self: self.sampled is not None)
    @rule(rows=st.integers(1, 20), names=NAMES, priorities=PRIORITIES)
    def update_late(self, rows: int, names: tuple[str, ...], priorities: list[float]) -> None:
        """Other things happened since the batch was sampled."""
        assert self.sampled is not None
        self.learn(self.sampled, rows, names, priorities)

    @precondition(lambda self: len(self.model) > 0)
    @rule(streams=st.lists(st.integers(0, 2), min_size=1, max_size=3), oldest=st.integers(0, 59), length=LENGTHS)
    def look_at_rows_by_age(self, streams: list[int], oldest: int, length: int) -> None:
        """As an evaluation does: consecutive rows, the last one repeated where they end too early."""
        held = len(self.model) // self.sizes.num_streams
        ages = [max(0, oldest % held - offset) for offset in range(length)]
        streams = [stream % self.sizes.num_streams for stream in streams]
        expected = [self.model.aged(stream, ages) for stream in streams]
        for side in self.sides:
            batch = side.buffer.aged(torch.tensor(streams), torch.tensor([ages] * len(streams)))
            assert_contains(batch, expected)

    @rule(is_other=st.booleans())
    def save(self, is_other: bool) -> None:
        """From now on the restored buffer must do whatever the saved one does."""
        saver = self.sides[-1 if is_other else 0]
        state = {"random_streams": saver.rng.get_state(), "buffer": saver.buffer.get_state()}
        self.checkpoints += 1
        with mock.patch.object(os, "fsync"):  # a power cut is proved against elsewhere
            saver.checkpoints.save(f"{self.checkpoints:06}", state, {"replay": saver.buffer})
        self.saved = self.model.copied(), dict(self.ahead), list(self.has_ended)
        self.sides, self.sampled = [saver, self.restored_side()], None

    @precondition(lambda self: self.saved is not None)
    @rule()
    def go_back(self) -> None:
        """The process died: what happened since the checkpoint is lost, and will happen differently."""
        assert self.saved is not None
        model, ahead, has_ended = self.saved
        self.model, self.ahead, self.has_ended = model.copied(), dict(ahead), list(has_ended)
        self.sides, self.sampled = [self.restored_side()], None

    @invariant()
    def counts_agree(self) -> None:
        for side in self.sides:
            assert len(side.buffer) == len(self.model)
            assert list(side.buffer.closed_chunks()) == self.model.closed_chunks()
            assert side.buffer.capacity == self.model.stream_length * self.model.num_streams
            for size, length in ((1, 1), (2, 3), (7, 5), (1, self.model.stream_length)):
                held, full = (max(0, rows - length + 1) for rows in (self.model.count, self.model.stream_length))
                assert side.buffer.can_sample(size, length) == (min(held, full) * self.model.num_streams >= size)
                assert side.buffer.could_sample(size, length) == (full * self.model.num_streams >= size)

    # How it is done

    def add(self, events: list[tuple[str, str, str]]) -> None:
        for each in events:
            row = made_row(self.appended, self.flags(each), is_large=self.is_large)
            self.appended += 1
            self.model.append(row)
            for side in self.sides:
                side.buffer.append(row)

    def flags(self, events: tuple[str, ...]) -> list[Flags]:
        found = []
        for stream, event in enumerate(events[: self.sizes.num_streams]):
            is_first = self.has_ended[stream] or event == "is_abandoned"
            self.has_ended[stream] = event in ("ends", "terminates")
            is_terminal = event == "terminates"
            found.append(Flags(is_first=is_first, is_last=self.has_ended[stream], is_terminal=is_terminal))
        return found

    def drawn(self, which: int) -> Sampled | None:
        """A batch of each side after it was checked, smaller where windows are few; None where there is none."""
        request = self.requests[which]
        windows = len(self.model.windows(request.length, crosses=request.crosses))
        for side in self.sides:
            can_sample = side.buffer.can_sample(request.size, request.length, crosses_episodes=request.crosses)
            assert can_sample == (windows >= request.size)
        if windows == 0:
            return None
        request = dataclasses.replace(request, size=min(request.size, windows))
        draw = self.ahead.pop(request, None) or self.model.draw(request)
        batches = [
            side.buffer.sample(request.size, request.length, sampler=request.sampler, crosses_episodes=request.crosses)
            for side in self.sides
        ]
        if self.home.is_prefetching:
            self.ahead[request] = self.model.draw(request)
        found = [checked(batch, request, draw) for batch in batches]
        assert all(one == found[0] for one in found), f"a restored buffer draws {found[-1]}, the saved one {found[0]}"
        self.sampled = Sampled(request=request, index=[batch.index for batch in batches], windows=found[0])
        return self.sampled

    def learn(self, sampled: Sampled, rows: int, names: tuple[str, ...], priorities: list[float]) -> None:
        """Rows of the batch may have been overwritten since it was drawn: those keep what they have."""
        self.write(sampled, rows, names)
        self.value(sampled, priorities)

    def write(self, sampled: Sampled, rows: int, names: tuple[str, ...]) -> None:
        """New latents for the last ``rows`` rows of each window; the same for a row that is in several of them."""
        self.written += 1
        rows = min(rows, sampled.request.length)
        first = sampled.request.length - rows
        places = [[(stream, start + first + offset) for offset in range(rows)] for stream, start in sampled.windows]
        values = {name: self.values(name, places) for name in names}
        for side, index in zip(self.sides, sampled.index, strict=True):
            side.buffer.write_back(index, {name: value.to(index.stream.device) for name, value in values.items()})
        kept = {name: value.to(DTYPES[f"stored/{name}"]) for name, value in values.items()}
        for b, window in enumerate(places):
            for t, place in enumerate(window):
                self.model.write_back(place, {name: bits(value[b, t]) for name, value in kept.items()})

    def value(self, sampled: Sampled, priorities: list[float]) -> None:
        """Give the windows priorities; the same to a window that was drawn twice."""
        request = sampled.request
        if not request.has_prioritized:
            return
        given = dict(zip(sampled.windows, priorities, strict=False))
        for side, index in zip(self.sides, sampled.index, strict=True):
            values = torch.tensor([given[window] for window in sampled.windows], device=index.stream.device)
            side.buffer.prioritize(index, values, crosses_episodes=request.crosses)
        self.model.prioritize((request.length, request.crosses), given)

    def values(self, name: str, places: list[list[Place]]) -> Tensor:
        """New for every row, and not of the type that is kept."""
        flat = torch.tensor([[8 * number + stream + 0.37 * self.written for stream, number in row] for row in places])
        if name == "code":
            return (flat.long() % 256).unsqueeze(-1).expand(-1, -1, 2)
        return flat.unsqueeze(-1) - torch.arange(512 if self.is_large else 3)

    def new_side(self) -> Side:
        self.made += 1
        folder = self.folder / f"home{self.made}"
        folder.mkdir()
        buffer, rng = make_buffer(self.home, folder, self.sizes, seed=self.made)
        checkpoints = CheckpointManager(self.folder / "run", config=CheckpointConfig(), say=pytest.fail)
        return Side(buffer=buffer, rng=rng, checkpoints=checkpoints)

    def restored_side(self) -> Side:
        side = self.new_side()
        loaded = side.checkpoints.load()
        assert loaded is not None
        side.checkpoints.restore_buffers(loaded, {"replay": side.buffer})
        side.rng.set_state(loaded.state["random_streams"])
        side.buffer.set_state(loaded.state["buffer"])
        return side


def checked(batch: Batch, request: Request, draw: Draw) -> list[Place]:
    """The windows of a batch, known by what their first rows contain, after each was found to be what it must be."""
    numbers = [bits(number) for number in batch.obs["number"][:, 0]]
    assert all(number in draw.moment.places for number in numbers), "rows that never came, or were not there yet"
    found = [draw.moment.places[number] for number in numbers]
    for window, allowed in zip(found, draw.choices, strict=True):
        assert window in allowed, f"{window} is none of the windows {sorted(allowed)}"
    assert batch.index.stream.tolist() == [stream for stream, _ in found]
    assert_contains(batch, [draw.moment.window(window, request.length) for window in found])
    return found


def assert_contains(batch: Batch, expected: list[dict[str, bytes]]) -> None:
    """Every window, bit by bit."""
    values = values_of(batch)
    assert {name: value.dtype for name, value in values.items()} == DTYPES
    assert all(len(value) == len(expected) for value in values.values())
    for b, window in enumerate(expected):
        found = {name: bits(value[b]) for name, value in values.items()}
        assert found.keys() == window.keys()
        assert [name for name in window if found[name] != window[name]] == []


def run_machine(home: Home, how: settings) -> None:
    run_state_machine_as_test(lambda: ReplayMachine(home), settings=how)


@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.name)
def test_replay_is_the_list_of_its_rows(home: Home) -> None:
    run_machine(home, QUICK)


@pytest.mark.long
@pytest.mark.parametrize("home", HOMES, ids=lambda home: home.name)
def test_replay_is_the_list_of_its_rows_through_many_lives(home: Home) -> None:
    run_machine(home, THOROUGH)


def test_the_machine_sees_what_was_fetched_ahead() -> None:
    with pytest.raises(AssertionError):
        run_machine(Home(name="host", fetches_ahead=True), HUNT)


# Bugs that must be found


class OneRowTooMany(WorldModelSequenceBuffer):
    """Its rings wrap one row too late."""

    def __init__(self, *, capacity: int, num_streams: int, **others: Any) -> None:
        self._true_length, self._streams = capacity // num_streams, num_streams
        super().__init__(capacity=(self._true_length + 1) * num_streams, num_streams=num_streams, **others)

    def __len__(self) -> int:
        return min(super().__len__(), self._true_length * self._streams)

    @property
    def capacity(self) -> int:
        return self._true_length * self._streams

    def can_sample(self, size: int, length: int, *, crosses_episodes: bool = True) -> bool:
        is_possible = not crosses_episodes or self.could_sample(size, length)
        return is_possible and super().can_sample(size, length, crosses_episodes=crosses_episodes)

    def could_sample(self, size: int, length: int) -> bool:
        return max(0, self._true_length - length + 1) * self._streams >= size


class TornAtTheWrap(WorldModelSequenceBuffer):
    """The first row of a new lap gets a picture of the row before it."""

    _laps, _last = 0, None

    def append(self, row: Row) -> None:
        if self._laps and self._laps % self.stream_length == 0 and self._last is not None:
            row = dataclasses.replace(row, obs={**row.obs, "image": self._last.obs["image"]})
        self._laps, self._last = self._laps + 1, row
        super().append(row)


class ForgetsWriteBacks(WorldModelSequenceBuffer):
    """Its state has what was stored before the last write-back."""

    _batch: Batch | None = None
    _written: dict[str, Tensor] | None = None

    def append(self, row: Row) -> None:
        self._written = None
        super().append(row)

    def sample(self, *asked: Any, **others: Any) -> Batch:
        self._written, self._batch = None, super().sample(*asked, **others)
        return self._batch

    def write_back(self, index: RowIndex, values: dict[str, Tensor]) -> None:
        self._written = values
        super().write_back(index, values)

    def get_state(self) -> State:
        if self._written is None or self._batch is None:
            return super().get_state()
        before = {name: self._batch.stored[name][:, -value.shape[1] :] for name, value in self._written.items()}
        super().write_back(self._batch.index, before)
        state = copy.deepcopy(super().get_state())
        super().write_back(self._batch.index, self._written)
        return state


class IgnoresPriorities(WorldModelSequenceBuffer):
    def prioritize(self, index: RowIndex, priority: Tensor, *, crosses_episodes: bool = True) -> None:
        """Nothing."""


class ForgetsWhatWasHandedOut(WorldModelSequenceBuffer):
    """After a restart its fresh windows are the newest ones again."""

    def set_state(self, state: State) -> None:
        super().set_state({**state, "selection": {**state["selection"], "fresh": {}}})


@pytest.mark.parametrize(
    ("buffer_class", "complaint"),
    [
        (OneRowTooMany, "assert"),  # its chunks show it, often before its windows do
        (TornAtTheWrap, "obs/image"),
        (ForgetsWriteBacks, "stored/"),
        (IgnoresPriorities, "none of the windows"),
        (ForgetsWhatWasHandedOut, "none of the windows|a restored buffer draws"),
    ],
)
def test_the_machine_finds_a_planted_bug(buffer_class: type[WorldModelSequenceBuffer], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        run_machine(Home(name="planted", buffer_class=buffer_class), HUNT)
