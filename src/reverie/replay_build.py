"""The part of the composition root that knows where replay lives: on the GPU, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from reverie.buffers.base import Buffer
from reverie.buffers.offline import OfflineBuffer
from reverie.buffers.prefetched import PrefetchedBuffer
from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.configuration import Allow, instantiate, plain, section, unknown_key
from reverie.node_walk import is_node
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.orchestration.phases import PhaseSpec
from reverie.orchestration.replay_memory import (
    Free,
    Need,
    RowBytes,
    chosen_home,
    collected_rows,
    is_collected,
    refuse_large_checkpoints,
    refuse_without_disk,
)
from reverie.orchestration.run_folder import RunFolder
from reverie.runtime.rng import RandomStreams
from reverie.targets import located

_HOME_KEY = "device"
_CPU = torch.device("cpu")


def replay_buffers(
    config: DictConfig,
    offline: Mapping[str, OfflineBuffer],
    *,
    phases: tuple[PhaseSpec, ...],
    width: RowBytes,
    agent_bytes: int,
    streams: Mapping[str, int],
    rng: RandomStreams,
    device: torch.device,
    allow: Allow,
) -> tuple[dict[str, Buffer], list[str]]:
    """All buffers of the configuration, and a sentence for each whose home had to be chosen.

    The choice is put into ``config``: a resumed run keeps it. ``streams`` has the number of environments by buffer,
    ``agent_bytes`` is what a checkpoint holds beside replay.
    """
    copies = section(CheckpointConfig, config.checkpoint, path="checkpoint").keep + 1  # one more while it is written
    folder = Path(plain(config.logdir) or "runs")
    is_resumed = RunFolder(folder).is_run
    free = Free.now(device, folder)
    refuse_large_checkpoints(agent_bytes, copies, free, folder)
    free = free.without("disk", copies * agent_bytes)
    buffers: dict[str, Buffer] = {}
    reasons: list[str] = []
    for name in _smallest_first(config):
        if name in offline:
            buffers[name] = offline[name]
            continue
        node = config.buffer[name]
        capacity = _capacity(plain(node))
        if not _has_home(plain(node), path=f"buffer.{name}", allow=allow) or capacity is None:
            buffers[name] = make_buffer(config, name, num_streams=streams[name], rng=rng, allow=allow)
            continue
        rows = collected_rows(name, phases, capacity)
        need = Need(name=name, capacity=capacity, rows=rows, width=width, copies=copies)
        home = chosen_home(need, asked_home(node, device), free, device, is_resumed=is_resumed)
        free = free.without(home.name, need.bytes_in(home.name))
        if home.name != "disk" and any(is_collected(name, phase) for phase in phases):
            refuse_without_disk(need, free, folder, is_resumed=is_resumed)
            free = free.without("disk", need.written_bytes)
        if node.get(_HOME_KEY) is not None:
            node[_HOME_KEY] = home.name
            reasons.append(home.reason)
        buffers[name] = make_buffer(config, name, num_streams=streams[name], rng=rng, allow=allow, device=device)
    return {name: buffers[name] for name in buffer_names(config)}, reasons


def buffer_names(config: Mapping[Any, Any]) -> Iterator[str]:
    """The keys of the section `buffer` that are buffers; any other than `device` is a mistake."""
    for key, node in config["buffer"].items():
        if is_node(plain(node)):
            yield str(key)
        elif key != _HOME_KEY:
            raise unknown_key(str(key), [str(one) for one in config["buffer"]], path="buffer")


def keep_replay_with(checkpoints: CheckpointManager, buffers: Mapping[str, Buffer]) -> None:
    """Let buffers on disk write their chunks where the checkpoints name them."""
    for name, buffer in buffers.items():
        if isinstance(buffer, PrefetchedBuffer):
            buffer.keep_in(checkpoints.replay_folder(name), partial(checkpoints.written_chunk, name))


def asked_home(node: Mapping[str, Any], device: torch.device) -> str:
    """Where the configuration wants the rows of a buffer; the memory of the device where it does not say."""
    return str(node.get(_HOME_KEY) or ("cuda" if device.type == "cuda" else "host"))


def keep_homes(config: DictConfig, stored: Mapping[str, Any]) -> None:
    """A run that goes on keeps its rows where they were, unless the user names another place."""
    for name in buffer_names(config):
        home = stored["buffer"].get(name, {}).get(_HOME_KEY)
        if config.buffer[name].get(_HOME_KEY) == "auto" and home is not None:
            config.buffer[name][_HOME_KEY] = home


def spread_home(config: Mapping[str, Any], overrides: Sequence[str]) -> None:
    """`buffer.device=...` for a run that goes on is meant for all its buffers whose home is a choice."""
    given = [override.partition("=")[0] for override in overrides]
    if f"buffer.{_HOME_KEY}" not in given:
        return
    for name in buffer_names(config):
        node = config["buffer"][name]
        if _HOME_KEY in node and f"buffer.{name}.{_HOME_KEY}" not in given:
            node[_HOME_KEY] = config["buffer"][_HOME_KEY]


def moved_homes(stored: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """A sentence for every buffer whose rows go elsewhere from now on."""
    homes = {
        name: (stored["buffer"][name].get(_HOME_KEY), config["buffer"][name].get(_HOME_KEY))
        for name in buffer_names(config)
    }
    return [
        f"Replay ({name}) moves from {before} to {now}: from here on the run differs from the one it would have been."
        for name, (before, now) in homes.items()
        if before not in (None, now)
    ]


def make_buffer(
    config: DictConfig,
    name: str,
    *,
    num_streams: int,
    rng: RandomStreams,
    allow: Allow,
    device: torch.device | None = None,
) -> Buffer:
    """The empty buffer that `buffer.NAME` describes. Batches are for ``device``, by default the one of ``rng``."""
    node, path, stream = config.buffer[name], f"buffer.{name}", f"replay/{name}"
    home = plain(node).get(_HOME_KEY)
    sizes = {"num_streams": num_streams}
    if device is None and home is not None:  # a buffer that lives for one command only
        node = {**plain(node), _HOME_KEY: "host"}
    if device is None or home in (None, "cuda") or (home == "host" and device.type == "cpu"):
        return instantiate(node, path=path, allow=allow, rng=rng.stream(stream), **sizes)
    is_gpu = device.type == "cuda"
    generator = rng.stream(f"{stream}/host", device=_CPU) if is_gpu else rng.stream(stream)
    made: WorldModelSequenceBuffer = instantiate(
        node, path=path, allow=allow, rng=generator, pins_batches=is_gpu, **sizes
    )
    return PrefetchedBuffer(made, device=device)


def _smallest_first(config: DictConfig) -> list[str]:
    """So that a large buffer does not take the fast memory from all others."""
    return sorted(buffer_names(config), key=lambda name: _capacity(plain(config.buffer[name])) or 0)


def _capacity(node: Mapping[str, Any]) -> int | None:
    """None where it is missing or no number, which is said when the buffer is made."""
    given = node.get("capacity")
    return int(given) if isinstance(given, int | float) else None


def _has_home(node: Any, *, path: str, allow: Allow) -> bool:
    """Whether it is a buffer of this project, whose rows can live in several places."""
    target = located(node["_target_"], path=f"{path}._target_", allow=allow)
    return isinstance(target, type) and issubclass(target, WorldModelSequenceBuffer)
