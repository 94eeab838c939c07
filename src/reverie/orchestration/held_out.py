"""The rows of one evaluation: data that no update has seen, cut into sequences and episodes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from reverie.buffers.base import Buffer
from reverie.types import Batch


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """``length`` rows of each ``stream`` [B], from the row numbered ``start`` [B] on."""

    stream: Tensor
    start: Tensor
    length: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """The newest ``num_rows`` rows of every stream of a buffer, numbered from the oldest, which is 0."""

    buffer: Buffer
    num_streams: int
    num_rows: int

    def rows(self, span: Span, *, before: int = 0) -> Batch:
        """The rows of ``span`` and ``before`` more in front; the oldest one is repeated where there is none before."""
        number = span.start.unsqueeze(1) + torch.arange(-before, span.length)
        return self.buffer.aged(span.stream, self.num_rows - 1 - number.clamp(min=0))

    def sequences(self, count: int, length: int, *, before: int) -> Span | None:
        """Up to ``count`` different sequences, spread over streams and time; shorter ones where there is too little.

        None when there is not even one row. A start leaves ``before`` rows in front unless an episode begins there.
        """
        first = self._first_start(before)
        length = min(length, self.num_rows - first)
        if length < 1:
            return None
        last, steps = self.num_rows - length, max(1, count - 1)
        places = dict.fromkeys(
            (index % self.num_streams, first + round(index * (last - first) / steps)) for index in range(count)
        )
        stream, start = torch.tensor(list(places)).unbind(1)
        return Span(stream=stream, start=start, length=length)

    def first_episode(self, length: int, *, before: int) -> Span | None:
        """The first episode of stream 0, or what is left of it, up to ``length`` rows."""
        span = self.sequences(1, length, before=before)
        if span is None:
            return None
        is_last = self.rows(span).is_last[0]
        ends = torch.nonzero(is_last).flatten().tolist()
        return Span(stream=span.stream, start=span.start, length=ends[0] + 1 if ends else span.length)

    def _first_start(self, before: int) -> int:
        """A long evaluation has lost its beginning: then the latents of the oldest rows must be left for the start."""
        if not self.num_rows:
            return 0
        oldest = Span(stream=torch.arange(self.num_streams), start=torch.zeros(self.num_streams).long(), length=1)
        return 0 if bool(self.rows(oldest).is_first.all()) else before


def leads(is_first_BT: Tensor, *, context: int, period: int) -> Tensor:
    """How far each row lies ahead of the last row that the model may see; 0 for those that it may see.

    It sees ``context`` rows at the start, at the start of every episode, and again after every ``period`` rows.
    """
    since = torch.zeros_like(is_first_BT[:, 0], dtype=torch.int64)
    found = [since]
    for is_first in is_first_BT[:, 1:].unbind(1):
        since = torch.where(is_first | (since + 1 == period), 0, since + 1)
        found.append(since)
    return (torch.stack(found, 1) - (context - 1)).clamp(min=0)
