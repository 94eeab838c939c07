"""A function on fixed tensors, recorded once as a CUDA graph and then replayed: no launch costs, the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import torch
from torch import Generator

from reverie.types import Metrics, ReverieError

WARM_UP_CALLS = 3
"""Libraries make their handles and workspaces, and algorithms their lazily made tensors, in the first calls."""

Method = TypeVar("Method", bound=Callable[..., object])


def not_capturable(method: Method) -> Method:
    """Mark a hook, or the ``act`` of a policy, that asks the device for a value or decides by one: it runs eagerly."""
    method.__dict__["capturable"] = False
    return method


def is_capturable(method: Callable[..., object]) -> bool:
    return getattr(method, "capturable", True)


class Captured:
    """``function`` reads and writes tensors that stay where they are, and returns its metrics as fresh tensors.

    The first calls are real ones, run eagerly; they give the same numbers as a replay, so nothing has to be undone.
    """

    def __init__(
        self,
        function: Callable[[], Metrics],
        *,
        name: str,
        generators: Callable[[], Iterable[Generator]],
        stream: torch.cuda.Stream | None = None,
        switch: str = "captures_updates",
    ) -> None:
        """``generators`` tells which random streams the function may draw from, once it has been called.

        ``stream`` is where calls are made, if that is not the main one: two graphs that run at the same time must not
        be recorded on the same stream, whose workspace belongs to both, nor draw from the same random streams.
        ``switch`` is the setting of ``runtime`` that makes the function run eagerly.
        """
        self._function, self._name, self._generators = function, name, generators
        self._stream, self._switch = stream, switch
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._metrics: Metrics = {}

    @property
    def is_recorded(self) -> bool:
        return self._graph is not None

    def __call__(self) -> Metrics:
        if self._graph is None and self._calls < WARM_UP_CALLS:
            self._calls += 1
            return self._warmed_up()
        if self._graph is None:
            self._graph = self._recorded()
        self._graph.replay()
        return self._metrics  # overwritten by the next replay

    def _warmed_up(self) -> Metrics:
        # Not on the default stream: what is set up there could not be captured.
        stream = self._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = self._function()
        torch.cuda.current_stream().wait_stream(stream)
        return metrics

    def _recorded(self) -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators():
            graph.register_generator_state(generator)
        try:
            # Other threads may go on with the device meanwhile: replay fetches its next batch.
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                self._metrics = self._function()
        except RuntimeError as error:
            raise ReverieError(
                f"'{self._name}' cannot be captured in a CUDA graph ({error}); mark it with "
                f"`runtime.capture.not_capturable`, or set runtime.{self._switch}=false."
            ) from error
        return graph
