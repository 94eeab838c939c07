"""An update recorded as a CUDA graph, and replayed after what it reads has changed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def replayed(update: Callable[[], list[Tensor]], *, after: Callable[[], object]) -> list[Tensor]:
    """What ``update`` gives when it is replayed ``after`` a change: what is replayed must read what is there then."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            update()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = update()
    after()
    graph.replay()
    return [one.clone() for one in captured]
