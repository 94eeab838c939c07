"""Every kind of replay buffer that must behave alike, one way to make any of them, and rows to fill them with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from plain_buffer import PlainBuffer
from torch import Generator, Tensor

from reverie.buffers import world_model_sequence
from reverie.buffers.base import Buffer
from reverie.buffers.device_rows import DeviceRows
from reverie.buffers.host_rows import HostRows
from reverie.buffers.prefetched import PrefetchedBuffer
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.runtime.array_file import array_pieces, mapped_arrays
from reverie.runtime.durable_files import replace_file
from reverie.types import Row

EXPONENT = 0.8
MIXER = 2_654_435_761
"""Neighbouring numbers times this differ in all bits."""


@dataclass(frozen=True, kw_only=True)
class Home:
    """Where rows live, and what that means for those who ask for them."""

    name: str
    fetches_ahead: bool = False
    is_prefetching: bool = False
    """What the machine is told of that: a batch is drawn directly after the one before it was handed out."""
    buffer_class: type[WorldModelSequenceBuffer] = WorldModelSequenceBuffer


class AsOnGpu(WorldModelSequenceBuffer):
    """Rows lie as in the memory of a GPU, which this machine may not have."""

    def _in_memory(self, example: Mapping[str, Tensor]) -> DeviceRows | HostRows:
        return DeviceRows(example, stream_length=self.stream_length, device=self._rng.device)


HOMES = [
    Home(name="host"),
    Home(name="as on a GPU", buffer_class=AsOnGpu),
    Home(name="host, fetched ahead", fetches_ahead=True, is_prefetching=True),
    Home(name="disk", fetches_ahead=True, is_prefetching=True),
]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    capacity: int
    num_streams: int
    chunk_rows: int = 1024
    """Rows in one write-once chunk, over all streams."""


def make_buffer(home: Home, folder: Path, sizes: Sizes, *, seed: int = 0) -> tuple[Buffer, Generator]:
    """An empty buffer and what it draws with. ``folder`` is its own, for homes that keep files."""
    rng = Generator().manual_seed(seed)
    with mock.patch.object(world_model_sequence, "CHUNK_ROWS", sizes.chunk_rows):
        buffer = home.buffer_class(
            capacity=sizes.capacity,
            num_streams=sizes.num_streams,
            rng=rng,
            device=home.name if home.name == "disk" else "host",
            priority_exponent=EXPONENT,
        )
    buffer.keep_in(folder, partial(_written, folder))
    return (PrefetchedBuffer(buffer, device=rng.device) if home.fetches_ahead else buffer), rng


def _written(folder: Path, index: int, fields: dict[str, Tensor]) -> dict[str, Tensor]:
    path = folder / f"{index}.safetensors"
    replace_file(path, array_pieces(fields))
    return mapped_arrays(path)


def make_model(sizes: Sizes) -> PlainBuffer:
    """The plain buffer that agrees with those of ``make_buffer``."""
    stream_length = sizes.capacity // sizes.num_streams
    return PlainBuffer(
        num_streams=sizes.num_streams,
        stream_length=stream_length,
        chunk_length=min(max(1, sizes.chunk_rows // sizes.num_streams), stream_length),
        exponent=EXPONENT,
    )


@dataclass(frozen=True, kw_only=True)
class Flags:
    is_first: bool = False
    is_last: bool = False
    is_terminal: bool = False


def made_row(number: int, flags: list[Flags], *, is_large: bool = False) -> Row:
    """Row ``number`` of all streams, every value of which tells it from all others. Any bits may be in a float."""
    numbers = np.array([number * 8 + stream for stream in range(len(flags))])
    mixed = numbers * MIXER
    side, deter = (20, 512) if is_large else (4, 3)  # in host memory large rows are copied in another way
    return Row(
        obs={
            "number": torch.from_numpy(numbers),
            "image": torch.from_numpy(_spread(mixed, (side, side, 3)).astype(np.uint8)),
            "vector": torch.from_numpy(_spread(mixed, (3,)).astype(np.uint32).view(np.float32)),
        },
        reward=torch.from_numpy(numbers / 10).float(),
        is_first=torch.tensor([flag.is_first for flag in flags]),
        is_last=torch.tensor([flag.is_last for flag in flags]),
        is_terminal=torch.tensor([flag.is_terminal for flag in flags]),
        action=torch.from_numpy(numbers % 7),
        stored={
            "deter": torch.from_numpy(_spread(mixed, (deter,)).astype(np.int16)).view(torch.bfloat16),
            "code": torch.from_numpy(_spread(mixed, (2,)).astype(np.uint8)),
        },
    )


def _spread(mixed: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers [N, *shape] that differ from one to the next."""
    return (mixed[:, None] + np.arange(np.prod(shape)) * MIXER // 7).reshape(len(mixed), *shape)
