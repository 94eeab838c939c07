"""The only place where a metric tensor becomes a number, and the owner of ``metrics.jsonl``.

A line is a JSON object: the counters first, then the metrics sorted by name. JSON has no NaN and no infinity, so these
are written as the strings "NaN", "Infinity" and "-Infinity": unlike null they say which of the three it was, every JSON
reader accepts the file, and ``float()`` turns them back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.orchestration.pictures import Picture
from reverie.orchestration.sinks import (
    NO_PICTURES,
    LineFile,
    Sink,
    TensorBoardSink,
    WandbConfig,
    WandbSink,
    imported_wandb,
)
from reverie.types import Episode, Metrics, ReverieError, State

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Where the run stands; part of every line."""

    agent_steps: int
    env_frames: int
    updates: int
    wall_seconds: float
    """Time spent training, over all sessions of the run."""

    @property
    def reached(self) -> str:
        """How far that is, in words: steps, or updates where no step was taken."""
        return f"{self.agent_steps:,} steps" if self.agent_steps or not self.updates else f"{self.updates:,} updates"


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggingConfig:
    every_steps: int = 1000
    """Agent steps between two metric lines, at most."""
    every_updates: int = 1000
    """Updates between two metric lines, at most: in an offline phase the agent steps stand still."""
    has_tensorboard: bool = True
    wandb: WandbConfig = field(default_factory=WandbConfig)

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_updates"):
            if getattr(self, name) < 1:
                raise ReverieError(f"`logging.{name}` must be at least 1, got {getattr(self, name)}.")


def check_sinks(config: LoggingConfig) -> None:
    """Find a missing package before a run folder exists."""
    if config.wandb.mode != "disabled":
        imported_wandb()


def make_sinks(folder: Path, *, config: LoggingConfig, run_config: Mapping[str, Any]) -> list[Sink]:
    """The sinks that the config asks for. ``run_config`` is what W&B shows as the run's settings."""
    sinks: list[Sink] = []
    if config.has_tensorboard:
        sinks.append(TensorBoardSink(folder / TENSORBOARD_FOLDER))
    if config.wandb.mode != "disabled":
        sinks.append(WandbSink(folder, config=config.wandb, run_config=run_config))
    return sinks


class Logger:
    """Averages metrics between two lines and writes the lines, so that a resumed run continues the same file.

    A new Logger appends. Before the first line of a session call ``set_state`` (resume) or ``reset`` (from the start).
    """

    def __init__(self, folder: Path, *, config: LoggingConfig, sinks: Sequence[Sink]) -> None:
        self._config = config
        self._sinks = sinks
        self._file = LineFile(folder / METRICS_FILE)
        self._pending = _Pending()
        self._num_lines = 0
        self._last_updates = 0
        self._next_step = config.every_steps

    def add(self, metrics: Metrics, *, prefix: str) -> None:
        """Count the metrics into the next line's means as ``prefix/name``, without asking the device anything.

        The tensors must be zero-dimensional and on one device; their memory may be overwritten afterwards.
        """
        self._pending.add(metrics, prefix)

    def add_episodes(self, episodes: Sequence[Episode]) -> None:
        """Put the episodes into the next line's ``collect/return_*``, ``collect/length_mean``, ``collect/episodes``."""
        self._pending.episodes.extend(episodes)

    def should_write(self, agent_steps: int, *, updates: int = 0) -> bool:
        """Whether a line is due; depends on step counts and saved state alone, never on time."""
        return agent_steps >= self._next_step or updates - self._last_updates >= self._config.every_updates

    def write(self, counters: Counters, extra: Mapping[str, float] | None = None) -> dict[str, float]:
        """Write everything pending and ``extra`` as one line; returns its metrics. Waits once for the device."""
        values = self._pending.means()
        if repeated := values.keys() & (extra or {}).keys():
            raise ValueError(f"these names are both pending and extra: {sorted(repeated)}")
        values |= extra or {}
        self._write_line(counters, values)
        self._pending = _Pending()
        self._next_step = (counters.agent_steps // self._config.every_steps + 1) * self._config.every_steps
        self._last_updates = counters.updates
        return values

    @property
    def has_pending(self) -> bool:
        """Whether anything was added since the last line."""
        return not self._pending.is_empty

    def write_now(
        self, counters: Counters, values: Mapping[str, float], pictures: Mapping[str, Picture] = NO_PICTURES
    ) -> None:
        """Write ``values`` as a line of their own; what is pending stays pending, and so does the next line's step.

        ``pictures`` go with the line to whoever can show them.
        """
        self._write_line(counters, values, pictures)

    def reset(self) -> None:
        """Start from the beginning: an empty file, nothing pending."""
        self._restore(_Pending(), offset=0, num_lines=0)
        self._last_updates = 0
        self._next_step = self._config.every_steps

    def get_state(self) -> State:
        # A checkpoint names this offset, so the bytes before it must survive whatever the checkpoint survives.
        self._file.sync()
        return {
            "offset": self._file.offset,
            "num_lines": self._num_lines,
            "last_updates": self._last_updates,
            "next_step": self._next_step,
            "pending": self._pending.get_state(),
        }

    def set_state(self, state: State) -> None:
        """Cut ``metrics.jsonl`` and the sinks back to the moment of the state and take up what was pending."""
        pending = _Pending()
        pending.set_state(state["pending"])
        self._restore(pending, offset=state["offset"], num_lines=state["num_lines"])
        self._last_updates = state["last_updates"]
        self._next_step = state["next_step"]

    def close(self) -> None:
        self._file.close()
        for sink in self._sinks:
            sink.close()

    def _restore(self, pending: _Pending, *, offset: int, num_lines: int) -> None:
        self._file.cut(offset)
        self._pending, self._num_lines = pending, num_lines
        for sink in self._sinks:
            sink.rewind(line=num_lines)

    def _write_line(
        self, counters: Counters, values: Mapping[str, float], pictures: Mapping[str, Picture] = NO_PICTURES
    ) -> None:
        line = asdict(counters) | {"wall_seconds": round(counters.wall_seconds, 3)}
        line |= {name: float(values[name]) for name in sorted(values)}
        self._file.append(json.dumps({name: _json_number(value) for name, value in line.items()}, allow_nan=False))
        for sink in self._sinks:
            sink.write(line, step=counters.agent_steps, line=self._num_lines, pictures=pictures)
        self._num_lines += 1


def _json_number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@dataclass(slots=True)
class _Sums:
    """Running sums of the metrics that arrive together. ``values`` is replaced, never written into."""

    values: Tensor
    count: int


class _Pending:
    """What the next line will average. Metrics of one call are one vector: two kernels per call, however many names."""

    def __init__(self) -> None:
        self.episodes: list[Episode] = []
        self._sums: dict[tuple[str, ...], _Sums] = {}

    def add(self, metrics: Metrics, prefix: str) -> None:
        if not metrics:
            return
        if shaped := [name for name, value in metrics.items() if value.ndim]:
            raise ValueError(f"metrics must be zero-dimensional tensors, but these are not: {', '.join(shaped)}")
        # stack copies: a captured graph overwrites its metric tensors in the next replay.
        values = torch.stack([value.detach() for value in metrics.values()]).to(torch.float64)
        key = (prefix.rstrip("/"), *metrics)
        sums = self._sums.get(key)
        if sums is None:
            self._sums[key] = _Sums(values, 1)
        else:
            sums.values = sums.values.to(values.device) + values  # a checkpoint gives sums back on the CPU
            sums.count += 1

    @property
    def is_empty(self) -> bool:
        return not self._sums and not self.episodes

    def means(self) -> dict[str, float]:
        totals: dict[str, float] = {}
        counts: dict[str, int] = {}
        for key, sums, count in zip(self._sums, self._numbers(), self._counts(), strict=True):
            for name, value in zip(key[1:], sums, strict=True):
                full_name = f"{key[0]}/{name}"
                totals[full_name] = totals.get(full_name, 0.0) + value
                counts[full_name] = counts.get(full_name, 0) + count
        return {name: total / counts[name] for name, total in totals.items()} | self._episode_values()

    def get_state(self) -> State:
        return {
            "sums": [
                {"prefix": key[0], "names": list(key[1:]), "values": sums.values, "count": sums.count}
                for key, sums in self._sums.items()
            ],
            "scores": [episode.score for episode in self.episodes],
            "lengths": [episode.length for episode in self.episodes],
        }

    def set_state(self, state: State) -> None:
        self._sums = {(part["prefix"], *part["names"]): _Sums(part["values"], part["count"]) for part in state["sums"]}
        pairs = zip(state["scores"], state["lengths"], strict=True)
        self.episodes = [Episode(score=score, length=length) for score, length in pairs]

    def _counts(self) -> list[int]:
        return [sums.count for sums in self._sums.values()]

    def _numbers(self) -> list[list[float]]:
        """The sums as Python numbers. One copy, hence one wait, per device."""
        vectors = [sums.values for sums in self._sums.values()]
        numbers: list[list[float]] = [[] for _ in vectors]
        for device in {vector.device: None for vector in vectors}:
            chosen = [index for index, vector in enumerate(vectors) if vector.device == device]
            flat = iter(torch.cat([vectors[index] for index in chosen]).tolist())
            for index in chosen:
                numbers[index] = [next(flat) for _ in range(len(vectors[index]))]
        return numbers

    def _episode_values(self) -> dict[str, float]:
        if not self.episodes:
            return {}
        scores = [episode.score for episode in self.episodes]
        return {
            "collect/return_mean": sum(scores) / len(scores),
            "collect/return_max": max(scores),
            "collect/length_mean": sum(episode.length for episode in self.episodes) / len(scores),
            "collect/episodes": float(len(scores)),
        }
