"""Chooses windows: uniformly, fresh ones first, by age, by priority, one after another, or in mixtures."""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from reverie.buffers.base import Sampler
from reverie.buffers.priorities import Priorities
from reverie.buffers.windows import AnyWindows, EpisodeWindows, Windows
from reverie.types import RowIndex, State, require

SAMPLERS = ("uniform", "fresh_first", "recent", "prioritized", "sweep")
LINED_UP = ("fresh_first", "sweep")
"""Those whose windows stand side by side, wherever episodes begin."""


def shares(size: int, sampler: Sampler) -> list[tuple[str, int]]:
    """How many of ``size`` windows each sampler chooses: whole numbers, the largest remainders rounded up."""
    if isinstance(sampler, str):
        return [(sampler, size)]
    exact = [(name, fraction * size) for name, fraction in sampler]
    whole = {name: int(number) for name, number in exact}
    by_remainder = sorted(exact, key=lambda one: int(one[1]) - one[1])  # stable: earlier names win
    for name, _ in by_remainder[: size - sum(whole.values())]:
        whole[name] += 1
    return [(name, count) for name, count in whole.items() if count]


class Selection:
    """The windows of a ring of rows, by length and by whether they may cross the border of an episode.

    What a sampler needs is made when it is first asked for, from the rows that are there, and kept up to date from then
    on. A draw looks at no value, so that a CUDA graph can hold it.
    """

    def __init__(
        self,
        *,
        num_streams: int,
        stream_length: int,
        exponent: float,
        importance_exponent: float,
        rng: Generator,
    ) -> None:
        require("priority_exponent of a buffer", exponent, at_least=0)
        require("importance_exponent of a buffer", importance_exponent, at_least=0)
        self._num_streams, self._stream_length = num_streams, stream_length
        self._exponent, self._importance_exponent, self._rng = exponent, importance_exponent, rng
        self._fresh: dict[int, Tensor] = {}
        """By window length: how many completed windows have been handed out."""
        self._swept: dict[int, Tensor] = {}
        """By window length: which of the windows that are held comes next."""
        self._windows: dict[tuple[int, bool], Windows] = {}
        self._priorities: dict[tuple[int, bool], Priorities] = {}

    def append(self, row: Tensor, is_first: Tensor) -> None:
        for windows in self._windows.values():
            windows.append(row, is_first)
        for priorities in self._priorities.values():
            priorities.append(row)

    def prepare(self, length: int, *, crosses_episodes: bool, is_first: Tensor, oldest: int) -> None:
        """Number the windows of the rows that are held, ``is_first`` [N, rows] from row ``oldest`` on."""
        sizes = {"num_streams": self._num_streams, "stream_length": self._stream_length}
        made = (
            AnyWindows(length, **sizes)
            if crosses_episodes
            else EpisodeWindows(length, is_first=is_first, oldest=oldest, stream_length=self._stream_length)
        )
        self._windows[length, crosses_episodes] = made

    def is_prepared(self, length: int, *, crosses_episodes: bool) -> bool:
        return (length, crosses_episodes) in self._windows

    def count(self, length: int, position: Tensor, *, crosses_episodes: bool) -> int:
        """How many windows there are. Waits for the device."""
        return int(self._windows[length, crosses_episodes].span(position)[1])

    def drawn(self, size: int, length: int, position: Tensor, *, sampler: Sampler, crosses_episodes: bool) -> RowIndex:
        """``size`` windows when ``position`` rows have come."""
        uniform = torch.rand(2, size, dtype=torch.float64, device=self._rng.device, generator=self._rng)
        parts, offset, done = [], torch.arange(length, device=self._rng.device), 0
        for name, count in shares(size, sampler):
            part = uniform[:, done : done + count]
            stream, start = self._chosen(name, part, length, position, crosses_episodes=crosses_episodes)
            index = RowIndex(stream=stream, row=start.unsqueeze(1) + offset)
            index.weight = self._weight(name, index, position, crosses_episodes=crosses_episodes)
            parts.append(index)
            done += count
        return _normalized(parts[0] if len(parts) == 1 else _joined(parts))

    def assign(self, index: RowIndex, priority: Tensor, position: Tensor, *, crosses_episodes: bool) -> None:
        """New priorities [B] of sampled windows, by whichever sampler."""
        self._prioritized(index.row.shape[1], position, crosses_episodes=crosses_episodes).assign(index, priority)

    def get_state(self) -> State:
        priorities = [
            {"length": length, "crosses_episodes": crosses, **one.get_state()}
            for (length, crosses), one in self._priorities.items()
        ]
        return {
            "fresh": {str(length): int(taken) for length, taken in self._fresh.items()},
            "swept": {str(length): int(place) for length, place in self._swept.items()},
            "priorities": priorities,
        }

    def set_state(self, state: State, *, is_first: Tensor, oldest: int, position: Tensor) -> None:
        """The rows come first: windows are numbered anew from them."""
        self._fresh = {int(length): torch.full_like(position, taken) for length, taken in state["fresh"].items()}
        swept = state.get("swept", {}).items()  # a run from before there was this sampler has none
        self._swept = {int(length): torch.full_like(position, place) for length, place in swept}
        self._windows, self._priorities = {}, {}
        for saved in state["priorities"]:
            length, crosses = saved["length"], saved["crosses_episodes"]
            self.prepare(length, crosses_episodes=crosses, is_first=is_first, oldest=oldest)
            self._prioritized(length, position, crosses_episodes=crosses).set_state(saved)

    def _chosen(
        self, name: str, uniform: Tensor, length: int, position: Tensor, *, crosses_episodes: bool
    ) -> tuple[Tensor, Tensor]:
        if name == "prioritized":
            stream, slot = self._prioritized(length, position, crosses_episodes=crosses_episodes).drawn(uniform[1])
            oldest = (position - self._stream_length).clamp(min=0)
            return stream, oldest + (slot - oldest) % self._stream_length
        if name == "sweep":
            return self._next_in_line(uniform.shape[1], length, position)
        if crosses_episodes and name != "recent":
            held = position.clamp(max=self._stream_length)
            stream = (uniform[0] * self._num_streams).long()
            start = (uniform[1] * (held - length + 1)).long() + (position - held)
            return (stream, start) if name == "uniform" else self._fresh_first(stream, start, length, position)
        windows = self._windows[length, crosses_episodes]
        first, count = windows.span(position)
        if name == "uniform":
            return windows.place(first + (uniform[1] * count).long())
        # exp(u log(n + 1)) has the density 1 / age.
        age = (uniform[1] * (count + 1).log()).exp().long().clamp(min=1)
        return windows.place(first + count - torch.minimum(age, count))

    def _next_in_line(self, size: int, length: int, position: Tensor) -> tuple[Tensor, Tensor]:
        """Windows side by side, from the oldest row to the newest, then from the oldest again."""
        held = position.clamp(max=self._stream_length)
        count = held // length * self._num_streams
        if length not in self._swept:
            self._swept[length] = torch.zeros_like(position)
        place = self._swept[length]
        number = (place + torch.arange(size, device=place.device)) % count
        place.copy_((place + size) % count)
        return number % self._num_streams, position - held + number // self._num_streams * length

    def _weight(self, name: str, index: RowIndex, position: Tensor, *, crosses_episodes: bool) -> Tensor | None:
        """What makes up for the sampler's preferences, in part or, with an exponent of 1, wholly. Others have none."""
        if not self._importance_exponent:
            return None
        if name != "prioritized":
            return torch.ones(len(index.stream), device=index.stream.device)
        priorities = self._prioritized(index.row.shape[1], position, crosses_episodes=crosses_episodes)
        return priorities.odds(index, position).pow(-self._importance_exponent).float()

    def _prioritized(self, length: int, position: Tensor, *, crosses_episodes: bool) -> Priorities:
        key = (length, crosses_episodes)
        if key not in self._priorities:
            self._priorities[key] = Priorities(
                self._windows[key],
                length=length,
                num_streams=self._num_streams,
                stream_length=self._stream_length,
                exponent=self._exponent,
                position=position,
            )
        return self._priorities[key]

    def _fresh_first(self, stream: Tensor, start: Tensor, length: int, position: Tensor) -> tuple[Tensor, Tensor]:
        """The drawn windows, the first of them replaced by completed ones that were not handed out yet."""
        size = len(stream)
        completed = position // length * self._num_streams
        oldest = (position - self._stream_length).clamp(min=0)
        oldest = (oldest + length - 1) // length * self._num_streams
        if length not in self._fresh:
            self._fresh[length] = completed - size
        taken = self._fresh[length]
        first = torch.maximum(taken, oldest)
        number = first + torch.arange(size, device=stream.device)
        is_fresh = number < completed
        taken.copy_(torch.maximum(first, torch.minimum(first + size, completed)))
        stream = torch.where(is_fresh, number % self._num_streams, stream)
        return stream, torch.where(is_fresh, number // self._num_streams * length, start)


def _joined(parts: list[RowIndex]) -> RowIndex:
    weights = [part.weight for part in parts if part.weight is not None]
    return RowIndex(
        stream=torch.cat([part.stream for part in parts]),
        row=torch.cat([part.row for part in parts]),
        weight=torch.cat(weights) if weights else None,
    )


def _normalized(index: RowIndex) -> RowIndex:
    """The largest weight of a batch is 1: weights make steps shorter and never longer."""
    if index.weight is not None:
        index.weight = index.weight / index.weight.amax()
    return index
