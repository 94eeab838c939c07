"""How often each window is drawn, against the law of its sampler, by chi-square."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest
import torch
from plain_buffer import Place, PlainBuffer, Request, bits
from replay_homes import HOMES, Flags, Home, Sizes, made_row, make_buffer, make_model
from torch import Generator

from reverie.buffers.base import Buffer, Sampler
from reverie.types import Batch

SIZES = Sizes(capacity=80, num_streams=2, chunk_rows=16)
LENGTH = 4
DRAWS = 40_000
NORMAL_QUANTILE = 3.0902
"""Exceeded with a probability of 0.001."""


def fits(counts: Counter[Place], weights: dict[Place, float]) -> bool:
    """Whether counts are in proportion to ``weights``: p > 0.001 (Wilson and Hilferty's approximation)."""
    if set(counts) - set(weights):
        return False
    scale = counts.total() / sum(weights.values())
    statistic = sum((counts[window] - weight * scale) ** 2 / (weight * scale) for window, weight in weights.items())
    freedom = len(weights) - 1
    spread = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread) < NORMAL_QUANTILE


@pytest.mark.parametrize(("freedom", "limit"), [(10, 29.588), (30, 59.703), (100, 149.449)])
def test_the_limit_is_that_of_the_tables(freedom: int, limit: float) -> None:
    """Published quantiles at 0.001, met within two percent. Below ten degrees of freedom, unused here, it is worse."""
    for factor, expected in ((0.98, True), (1.02, False)):
        half = round(math.sqrt(limit * factor * 10**8 / 2))
        counts = Counter(dict.fromkeys([(0, place) for place in range(freedom + 1)], 10**8))
        counts.update({(0, 0): half, (0, 1): -half})
        assert fits(counts, dict.fromkeys(counts, 1.0)) == expected


class Replay:
    """A buffer and its model, filled alike: episodes of 7 rows in the first stream and of 8 in the second."""

    def __init__(self, home: Home, folder: Path, rows: int) -> None:
        self.home, self.folder = home, folder
        self.model: PlainBuffer = make_model(SIZES)
        self.buffer, self.rng = self.made("first")
        self.append(rows)

    def made(self, name: str, seed: int = 0) -> tuple[Buffer, Generator]:
        folder = self.folder / name
        folder.mkdir()
        return make_buffer(self.home, folder, SIZES, seed=seed)

    def append(self, rows: int) -> None:
        for number in range(self.model.count, self.model.count + rows):
            row = made_row(number, [Flags(is_first=number % (7 + stream) == 0) for stream in range(2)])
            self.model.append(row)
            self.buffer.append(row)

    def sample(self, size: int, sampler: Sampler, *, crosses: bool = True, length: int = LENGTH) -> Batch:
        """Drawn now: what a prefetching home drew earlier is thrown away."""
        for _ in range(2 if self.home.is_prefetching else 1):
            batch = self.buffer.sample(size, length, sampler=sampler, crosses_episodes=crosses)
        return batch

    def drawn(self, size: int, sampler: Sampler, *, crosses: bool = True) -> list[Place]:
        return self.windows(self.sample(size, sampler, crosses=crosses))

    def windows(self, batch: Batch) -> list[Place]:
        first = batch.obs["number"][:, 0]
        places = {int(number): self.model.places[bits(number)] for number in first.unique()}
        return [places[number] for number in first.tolist()]

    def give(self, *, crosses: bool) -> None:
        """Priorities to some windows, which differ by a factor of up to 25."""
        batch = self.sample(64, "prioritized", crosses=crosses)
        given = {window: 0.2 + 1.2 * (window[1] % 5) for window in self.windows(batch)}
        values = torch.tensor([given[window] for window in self.windows(batch)])
        self.buffer.prioritize(batch.index, values.to(batch.index.stream.device), crosses_episodes=crosses)
        self.model.prioritize((LENGTH, crosses), given)

    def restart(self) -> None:
        """A new buffer goes on from the state of the old one."""
        chunks = {index: self.buffer.chunk(index) for index in self.buffer.closed_chunks()}
        state, random = self.buffer.get_state(), self.rng.get_state()
        self.buffer, self.rng = self.made("second", seed=1)
        for index, arrays in chunks.items():
            self.buffer.load_chunk(index, arrays)
        self.rng.set_state(random)
        self.buffer.set_state(state)


each_home = pytest.mark.parametrize("home", HOMES, ids=lambda home: home.name)
across_and_inside = pytest.mark.parametrize("crosses", [True, False])
before_and_after_the_wrap = pytest.mark.parametrize("rows", [30, 40, 95])


@each_home
@across_and_inside
@before_and_after_the_wrap
def test_uniform_windows_come_equally_often(home: Home, crosses: bool, rows: int, tmp_path: Path) -> None:
    replay = Replay(home, tmp_path, rows)
    drawn = Counter(replay.drawn(DRAWS, "uniform", crosses=crosses))
    equal = dict.fromkeys(replay.model.windows(LENGTH, crosses=crosses), 1.0)
    assert fits(drawn, equal)
    favourite = next(iter(equal))
    drawn[favourite] += drawn[favourite] // 2
    assert not fits(drawn, equal), "one window that comes half as often again must be seen"


def test_a_stream_first_and_then_a_window_of_it_is_no_uniform_draw(tmp_path: Path) -> None:
    """The mistake that is easily made inside episodes: streams hold different numbers of windows."""
    windows = Replay(HOMES[0], tmp_path, 95).model.windows(LENGTH, crosses=False)
    rng = Generator().manual_seed(0)
    by_stream = [[window for window in windows if window[0] == stream] for stream in range(2)]
    streams = torch.randint(2, (DRAWS,), generator=rng).tolist()
    shares = torch.rand(DRAWS, generator=rng).tolist()
    drawn = [by_stream[stream][int(u * len(by_stream[stream]))] for stream, u in zip(streams, shares, strict=True)]
    assert not fits(Counter(drawn), dict.fromkeys(windows, 1.0))


@each_home
@across_and_inside
@before_and_after_the_wrap
def test_recent_windows_come_with_a_chance_that_falls_as_one_over_age(
    home: Home, crosses: bool, rows: int, tmp_path: Path
) -> None:
    replay = Replay(home, tmp_path, rows)
    drawn = Counter(replay.drawn(DRAWS, "recent", crosses=crosses))
    newest_first = replay.model.windows(LENGTH, crosses=crosses)[::-1]
    # The mean of 1 / age from one whole age to the next.
    assert fits(drawn, {window: math.log((age + 1) / age) for age, window in enumerate(newest_first, start=1)})
    assert not fits(drawn, {window: 1 / (age + 1) for age, window in enumerate(newest_first, start=1)})


@each_home
@across_and_inside
def test_prioritized_windows_come_by_their_priorities_whatever_happened_to_them(
    home: Home, crosses: bool, tmp_path: Path
) -> None:
    replay = Replay(home, tmp_path, 60)

    def drawn() -> Counter[Place]:
        return Counter(replay.drawn(DRAWS, "prioritized", crosses=crosses))

    replay.give(crosses=crosses)
    assert fits(drawn(), replay.model.weights(LENGTH, crosses=crosses)), "given once"
    replay.give(crosses=crosses)
    assert fits(drawn(), replay.model.weights(LENGTH, crosses=crosses)), "given twice"
    replay.append(25)
    after = replay.model.weights(LENGTH, crosses=crosses)
    assert fits(drawn(), after), "partly overwritten"
    replay.restart()
    restored = drawn()
    assert fits(restored, after), "restored"
    assert not fits(restored, dict.fromkeys(after, 1.0))
    assert not fits(restored, {window: weight**1.5 for window, weight in after.items()}), "another exponent"


@each_home
@pytest.mark.parametrize(
    ("size", "by_priority", "fresh"), [(1, 0, 1), (2, 1, 1), (3, 1, 1), (7, 2, 3), (10, 3, 4), (16, 5, 6)]
)
def test_fractions_of_a_mixture_are_exact_in_number(
    home: Home, size: int, by_priority: int, fresh: int, tmp_path: Path
) -> None:
    """One window is worth more than all others together, and enough fresh ones wait."""
    replay = Replay(home, tmp_path, 60)
    only = replay.sample(1, "prioritized")
    replay.buffer.prioritize(only.index, torch.tensor([1e30], device=only.index.stream.device))
    (favourite,) = replay.windows(only)
    batch = replay.sample(size, (("prioritized", 0.3), ("fresh_first", 0.4), ("uniform", 0.3)))
    drawn = replay.windows(batch)
    assert drawn[:by_priority] == [favourite] * by_priority
    blocks = [(stream, start) for start in range(0, 57, LENGTH) for stream in range(2)]
    if not home.is_prefetching:  # else these are the ones before
        assert drawn[by_priority : by_priority + fresh] == blocks[-fresh:]
    others = drawn[by_priority + fresh :]
    assert len(others) == size - by_priority - fresh
    assert len(others) < 2 or len(set(others) - {favourite}) > 1


@each_home
@pytest.mark.parametrize("size", [1, 2, 3])
def test_fresh_windows_are_handed_out_once_each_and_in_order(home: Home, size: int, tmp_path: Path) -> None:
    """Two windows become complete with every fourth row, and four batches are drawn meanwhile."""
    request = Request(size=size, length=LENGTH, sampler="fresh_first", crosses=True)
    replay, ahead, handed_out = Replay(home, tmp_path, LENGTH), None, []
    for _ in range(200):
        draw = ahead or replay.model.draw(request)
        drawn = replay.windows(replay.buffer.sample(size, LENGTH, sampler="fresh_first"))
        ahead = replay.model.draw(request) if home.is_prefetching else None
        handed_out += [window for window, allowed in zip(drawn, draw.choices, strict=True) if allowed == {window}]
        replay.append(1)
    blocks = [(stream, start) for start in range(0, 200, LENGTH) for stream in range(2)]
    assert handed_out == blocks[-len(handed_out) :]
    assert len(handed_out) >= len(blocks) - 3
