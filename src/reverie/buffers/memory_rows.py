"""A ring of rows in memory: that of the host or that of another device."""

from __future__ import annotations

from typing import TypeAlias

import torch

from reverie.buffers.device_rows import DeviceRows
from reverie.buffers.host_rows import HostRows
from reverie.buffers.layout import Layout

MemoryRows: TypeAlias = DeviceRows | HostRows


def memory_rows(
    layout: Layout, *, num_streams: int, stream_length: int, device: torch.device, pins_batches: bool = False
) -> MemoryRows:
    """``pins_batches``: rows are in host memory, and batches go to a GPU."""
    if device.type == "cpu":
        return HostRows(layout, num_streams=num_streams, stream_length=stream_length, pins_batches=pins_batches)
    return DeviceRows(layout, num_streams=num_streams, stream_length=stream_length, device=device)
