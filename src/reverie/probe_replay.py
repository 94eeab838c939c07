"""The replay of a probe is small, whatever that of the run will be: sizes of the one and of the other."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig

from reverie.buffers.base import Buffer
from reverie.build import phases_of
from reverie.configuration import plain, section
from reverie.node_walk import is_node
from reverie.orchestration.checkpoint import CheckpointConfig
from reverie.orchestration.evaluator import EVALUATION_BUFFER, EvaluationConfig
from reverie.orchestration.replay_memory import HOMES, Free, Need, RowBytes, chosen_home
from reverie.orchestration.run_counts import BufferRoom, RunCounts
from reverie.replay_build import asked_home
from reverie.sections import EnvironmentConfig
from reverie.types import ReverieError

_SPARE_ROWS = 64
"""Of each environment, in the replay of a probe, beyond the windows that updates wait for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replay:
    """One buffer of the run, as large as the configuration makes it."""

    capacity: int
    rows: int
    """Rows that the run will have in it; what a dataset brings is there already and not counted."""
    home: str
    """Where they will live: cuda, host or disk."""


def with_small_replay(config: DictConfig) -> DictConfig:
    """The same run with buffers that hold what its updates wait for and little more: the probe fills no others, and
    whether the real ones fit is for the plan to say."""
    small = copy.deepcopy(config)
    environment = {key: value for key, value in plain(config.environment).items() if key != "simulator"}
    num_envs = section(EnvironmentConfig, environment, path="environment").num_envs
    envs = max(num_envs, section(EvaluationConfig, config.evaluation, path="evaluation").envs)
    for name, capacity in capacities(config).items():
        phases = [phase for phase in phases_of(config) if phase.buffer == name]
        batches = [hook.batch for phase in phases for hook in phase.hooks if hook.batch]
        longest = max((batch.length for batch in batches), default=0) + _SPARE_ROWS
        windows = max((batch.windows_needed for batch in batches), default=0)
        small.buffer[name].capacity = min(capacity, windows + envs * longest)
    return small


def capacities(config: DictConfig) -> dict[str, int]:
    """Of every buffer whose size the configuration sets; a dataset has its own."""
    nodes = {str(name): plain(node) for name, node in config.buffer.items()}
    given = {name: node.get("capacity") for name, node in nodes.items() if is_node(node)}
    return {name: int(value) for name, value in given.items() if _is_whole(value)}


def _is_whole(value: Any) -> bool:
    """1e6 reaches us as a float. What is no whole number is refused where the buffer is made."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and float(value).is_integer()


def room_of(buffer: Buffer, capacity: int | None) -> BufferRoom:
    """That of a buffer of the run, which is made with ``capacity`` rows where ``buffer`` is a small one."""
    streams = buffer.capacity // buffer.stream_length
    length = buffer.stream_length if capacity is None else capacity // streams
    return BufferRoom(streams=streams, stream_length=length, held=len(buffer) // streams)


def need_of(name: str, room: BufferRoom, counts: RunCounts, width: RowBytes, config: DictConfig) -> Need:
    capacity = room.streams * room.stream_length
    brought = sum(phase.steps for phase in counts.phases if phase.buffer == name)
    if name == EVALUATION_BUFFER:
        brought = capacity if counts.evaluations else 0
    rows = min(capacity - room.streams * room.held, brought)
    copies = section(CheckpointConfig, config.checkpoint, path="checkpoint").keep + 1
    return Need(name=name, capacity=capacity, rows=rows, width=width, copies=copies)


def planned_replay(needed: Sequence[Need], config: DictConfig, free: Free, device: torch.device) -> dict[str, Replay]:
    """Where a run would put each, small ones first as it does; where nothing has room, the place that it tries last."""
    found: dict[str, Replay] = {}
    for need in sorted(needed, key=lambda one: one.capacity):
        asked = asked_home(plain(config.buffer[need.name]), device)
        try:
            home = chosen_home(need, asked, free, device).name
        except ReverieError:
            home = HOMES[-1] if asked == "auto" else asked
        free = free.without(home, need.bytes_in(home))
        found[need.name] = Replay(capacity=need.capacity, rows=need.rows, home=home)
    return {need.name: found[need.name] for need in needed}
