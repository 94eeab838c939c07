"""The replay buffer as plainly as it can be said: a list of every row that ever came, and nothing is ever overwritten.

Rows have absolute numbers, values are bytes. What is held, which windows exist and what they contain follows from the
definitions alone, so that a buffer with rings, chunks and sums can be compared with it bit by bit.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.buffers.base import Sampler
from reverie.types import Row

Place = tuple[int, int]
"""(stream, number of a row). A window is named by the place of its first row."""
Kind = tuple[int, bool]
"""(length of windows, whether they may cross the border of an episode)"""

YES = b"\x01"
LEAST_PRIORITY = 1e-6
NEVER = 1e-18
"""A share of all weights that no test will live to see drawn."""


def bits(value: Tensor) -> bytes:
    return value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def values_of(row: Row) -> dict[str, Tensor]:
    """All tensors of a row or of a batch, by name."""
    flags = {name: getattr(row, name) for name in ("is_first", "is_last", "is_terminal")}
    obs = {f"obs/{name}": value for name, value in row.obs.items()}
    stored = {f"stored/{name}": value for name, value in row.stored.items()}
    return {"reward": row.reward, "action": row.action, **flags, **obs, **stored}


def parts_of(size: int, sampler: Sampler) -> list[tuple[str, int]]:
    """How many windows each sampler chooses: rounded down, and what is missing goes to the largest remainders."""
    fractions = ((sampler, 1.0),) if isinstance(sampler, str) else sampler
    counts = [math.floor(fraction * size) for _, fraction in fractions]
    while sum(counts) < size:
        missing = [fraction * size - count for (_, fraction), count in zip(fractions, counts, strict=True)]
        counts[missing.index(max(missing))] += 1
    return [(name, count) for (name, _), count in zip(fractions, counts, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Request:
    """What ``sample`` is asked for."""

    size: int
    length: int
    sampler: Sampler
    crosses: bool

    @property
    def has_prioritized(self) -> bool:
        """Whether priorities are given back, even if its share of a small batch is no window."""
        return any(name == "prioritized" for name, _ in parts_of(self.size, self.sampler))


@dataclass(frozen=True, kw_only=True)
class Draw:
    """What a batch may be that was drawn at one moment."""

    choices: list[set[Place]]
    """For each window of the batch: those that it may be."""
    moment: PlainBuffer
    """Everything as it was then."""


class PlainBuffer:
    def __init__(self, *, num_streams: int, stream_length: int, chunk_length: int, exponent: float) -> None:
        self.num_streams, self.stream_length, self.chunk_length = num_streams, stream_length, chunk_length
        self.exponent = exponent
        self.rows: list[list[dict[str, bytes]]] = [[] for _ in range(num_streams)]
        """By stream and number: every row ever appended, with what was stored beside it."""
        self.places: dict[bytes, Place] = {}
        """By the observation `number`, which no two rows share."""
        self.priorities: dict[Kind, dict[Place, float]] = {}
        """Of windows that were given one, or that were completed when others had been."""
        self.highest: dict[Kind, float] = {}
        self.handed_out: dict[int, set[Place]] = {}
        """By length: fresh windows that were given to somebody."""

    def copied(self) -> PlainBuffer:
        twin = copy.copy(self)
        twin.rows = [list(rows) for rows in self.rows]
        twin.places, twin.highest = dict(self.places), dict(self.highest)
        twin.priorities = {kind: dict(given) for kind, given in self.priorities.items()}
        twin.handed_out = {length: set(given) for length, given in self.handed_out.items()}
        return twin

    # What is held

    @property
    def count(self) -> int:
        """Rows that have come to each stream."""
        return len(self.rows[0])

    @property
    def oldest(self) -> int:
        """The number of the oldest row that is held."""
        return max(0, self.count - self.stream_length)

    def __len__(self) -> int:
        return (self.count - self.oldest) * self.num_streams

    def is_held(self, place: Place) -> bool:
        return self.oldest <= place[1] < self.count

    def closed_chunks(self) -> list[int]:
        """Those that are full and have a row that is held."""
        full = range(self.count // self.chunk_length)
        return [index for index in full if (index + 1) * self.chunk_length > self.oldest]

    # Windows

    def windows(self, length: int, *, crosses: bool) -> list[Place]:
        """All that exist, from the oldest to the newest."""
        starts = range(self.oldest, self.count - length + 1)
        found = [(stream, start) for start in starts for stream in range(self.num_streams)]
        return [window for window in found if crosses or self.is_inside_an_episode(window, length)]

    def is_inside_an_episode(self, window: Place, length: int) -> bool:
        stream, start = window
        return not any(self.is_first((stream, start + offset)) for offset in range(1, length))

    def is_first(self, place: Place) -> bool:
        return self.rows[place[0]][place[1]]["is_first"] == YES

    def window(self, window: Place, length: int) -> dict[str, bytes]:
        stream, start = window
        return self.content([(stream, start + offset) for offset in range(length)])

    def aged(self, stream: int, ages: Iterable[int]) -> dict[str, bytes]:
        return self.content([(stream, self.count - 1 - age) for age in ages])

    def content(self, places: list[Place]) -> dict[str, bytes]:
        """Bytes by name of rows in a row. Where an episode begins, the one before has ended, abandoned or not."""
        rows = [self.rows[stream][number] for stream, number in places]
        joined = {name: [row[name] for row in rows] for name in rows[0]}
        for offset, place in enumerate(places[1:]):
            if self.is_first(place):
                joined["is_last"][offset] = YES
        return {name: b"".join(values) for name, values in joined.items()}

    # What happens to it

    def append(self, row: Row) -> None:
        values = values_of(row)
        for stream in range(self.num_streams):
            self.rows[stream].append({name: bits(value[stream]) for name, value in values.items()})
            self.places[self.rows[stream][-1]["obs/number"]] = (stream, self.count_of(stream) - 1)
        for (length, crosses), given in self.priorities.items():
            for window in self.completed_last(length, crosses=crosses):
                given[window] = self.highest[length, crosses]

    def count_of(self, stream: int) -> int:
        return len(self.rows[stream])

    def completed_last(self, length: int, *, crosses: bool) -> Iterator[Place]:
        """Windows that end with the newest row."""
        start = self.count - length
        for stream in range(self.num_streams):
            if start >= self.oldest and (crosses or self.is_inside_an_episode((stream, start), length)):
                yield stream, start

    def write_back(self, place: Place, values: dict[str, bytes]) -> None:
        """A row that is no longer held needs nothing."""
        if self.is_held(place):
            stream, number = place
            named = {f"stored/{name}": value for name, value in values.items()}
            self.rows[stream][number] = self.rows[stream][number] | named

    def prioritize(self, kind: Kind, given: dict[Place, float]) -> None:
        """What is no number counts as the highest so far. Windows that were overwritten meanwhile have none."""
        highest = self.highest.get(kind, 1.0)
        given = {window: value for window, value in given.items() if self.is_held(window)}
        if not given:
            return
        finite = {window: value if math.isfinite(value) else highest for window, value in given.items()}
        bounded = {window: max(value, LEAST_PRIORITY) for window, value in finite.items()}
        self.priorities.setdefault(kind, {}).update(bounded)
        self.highest[kind] = max(highest, *bounded.values())

    def weights(self, length: int, *, crosses: bool) -> dict[Place, float]:
        """By window: what its chance with the sampler `prioritized` is proportional to."""
        given = self.priorities.get((length, crosses), {})
        return {one: given.get(one, 1.0) ** self.exponent for one in self.windows(length, crosses=crosses)}

    # What a draw may give

    def draw(self, request: Request) -> Draw:
        """Made now. Fresh windows that it contains count as handed out from now on."""
        allowed = set(self.windows(request.length, crosses=request.crosses))
        choices: list[set[Place]] = []
        for name, count in parts_of(request.size, request.sampler):
            if name == "prioritized":
                choices += [self.likely(request.length, crosses=request.crosses)] * count
            elif name == "fresh_first" and count:
                fresh = self.fresh(count, request.length)
                choices += [{window} for window in fresh] + [allowed] * (count - len(fresh))
            else:
                choices += [allowed] * count
        return Draw(choices=choices, moment=self.copied())

    def likely(self, length: int, *, crosses: bool) -> set[Place]:
        """Windows that can come by priority: all but those that others outweigh beyond any chance."""
        weights = self.weights(length, crosses=crosses)
        total = sum(weights.values())
        return {window for window, weight in weights.items() if weight > total * NEVER}

    def fresh(self, most: int, length: int) -> list[Place]:
        """Side by side, not overlapping, oldest first; the first who asks gets the ``most`` newest."""
        blocks = [
            (stream, start) for start in range(0, self.count - length + 1, length) for stream in range(self.num_streams)
        ]
        given = self.handed_out.setdefault(length, set(blocks[:-most]))
        waiting = [block for block in blocks if block not in given and self.is_held(block)][:most]
        given.update(waiting)
        return waiting
