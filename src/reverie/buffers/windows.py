"""Which windows of one length a buffer holds, numbered from the oldest to the newest, so that any can be drawn at once.

Everything is counted on the device and nothing is asked for: neither an append nor a draw waits, and a CUDA graph can
hold a draw.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Windows(Protocol):
    def append(self, row: Tensor, is_first: Tensor) -> None:
        """Row number ``row`` has come to every stream; ``is_first`` [N] says where it begins an episode."""
        ...

    def ended(self, row: Tensor) -> Tensor:
        """[N]: whether a window ends with ``row``, the last that has come."""
        ...

    def span(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """(first, count) of the numbers of the windows that are whole when ``position`` rows have come."""
        ...

    def place(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """(stream, start row) of windows by their numbers, which lie inside ``span``."""
        ...


class AnyWindows:
    """All windows, across the borders of episodes too."""

    def __init__(self, length: int, *, num_streams: int, stream_length: int) -> None:
        self._length, self._num_streams, self._stream_length = length, num_streams, stream_length

    def append(self, row: Tensor, is_first: Tensor) -> None:
        """Nothing but the number of rows counts, and everybody who asks gives it."""

    def ended(self, row: Tensor) -> Tensor:
        return (row >= self._length - 1).expand(self._num_streams)

    def span(self, position: Tensor) -> tuple[Tensor, Tensor]:
        oldest = (position - self._stream_length).clamp(min=0)
        count = (position - oldest - self._length + 1).clamp(min=0)
        return oldest * self._num_streams, count * self._num_streams

    def place(self, number: Tensor) -> tuple[Tensor, Tensor]:
        return number % self._num_streams, number // self._num_streams


class EpisodeWindows:
    """Those that lie inside one episode, as a list. The front of the list are those that were overwritten."""

    def __init__(self, length: int, *, is_first: Tensor, oldest: int, stream_length: int) -> None:
        """``is_first`` [N, rows] of the rows that are held, of which ``oldest`` is the number of the first."""
        device, (num_streams, held) = is_first.device, is_first.shape
        self._length, self._num_streams, self._stream_length = length, num_streams, stream_length
        self._room = num_streams * stream_length
        self._stream = torch.arange(num_streams, device=device)
        self._age, is_window = _ages(is_first, length)
        """[N]: rows of the open episode of each stream, without its first, as far as they are held."""
        rows, streams = is_window.t().nonzero(as_tuple=True)
        starts = (rows + oldest - length + 1) * num_streams + streams
        # One place more is a bin for what is no window.
        self._starts = torch.zeros(self._room + 1, dtype=torch.int64, device=device)
        self._starts[: len(starts)] = starts
        self._known = torch.full((), len(starts), dtype=torch.int64, device=device)
        """Windows that were ever complete."""
        self._known_before = torch.zeros(stream_length, dtype=torch.int64, device=device)
        """By slot: how many of them were complete before its row came."""
        slots = torch.arange(oldest, oldest + held, device=device) % stream_length
        per_row = is_window.sum(0)
        self._known_before[slots] = per_row.cumsum(0) - per_row

    def append(self, row: Tensor, is_first: Tensor) -> None:
        self._age.add_(1).masked_fill_(is_first, 0)
        is_window = self._age >= self._length - 1
        place = (self._known + is_window.cumsum(0) - 1) % self._room
        start = (row - self._length + 1) * self._num_streams + self._stream
        self._starts[torch.where(is_window, place, self._room)] = start
        self._known_before[row % self._stream_length] = self._known
        self._known += is_window.sum()

    def ended(self, row: Tensor) -> Tensor:
        return self._age >= self._length - 1

    def span(self, position: Tensor) -> tuple[Tensor, Tensor]:
        oldest = (position - self._stream_length).clamp(min=0)
        first_end = oldest + self._length - 1
        # Not by `[]`: an index of one number asks the device for it.
        first = self._known_before.take(first_end % self._stream_length)
        first = torch.where(first_end < position, first, self._known)
        return first, self._known - first

    def place(self, number: Tensor) -> tuple[Tensor, Tensor]:
        start = self._starts[number % self._room]
        return start % self._num_streams, start // self._num_streams


def _ages(is_first: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """(age [N] of each stream's last row, whether a window of one episode ends with each row [N, rows])."""
    num_streams, held = is_first.shape
    if held == 0:
        return torch.full((num_streams,), -1, device=is_first.device), is_first.new_zeros(num_streams, 0)
    number = torch.arange(held, device=is_first.device).expand(num_streams, -1)
    # On the host: the running maximum has no deterministic form on every device, and this happens once.
    begun = torch.where(is_first, number, 0).cpu().cummax(1).values.to(is_first.device)
    age = number - begun
    return age[:, -1].clone(), age >= length - 1
