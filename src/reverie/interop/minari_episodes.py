"""Datasets of Minari that are on this machine. Its hub is never asked."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from reverie.datasets.findings import Finding
from reverie.environments.gym_actions import ActionWriter
from reverie.environments.gym_spaces import ObsReader
from reverie.interop.data_packages import data_package
from reverie.interop.foreign_episodes import ForeignEpisode, Found
from reverie.types import ReverieError, Spaces

PREFIX = "minari:"


def is_minari(path: Path) -> bool:
    """Whether the folder looks like one that Minari keeps a dataset in."""
    return (path / "data" / "main_data.hdf5").is_file() or (path / "data" / "metadata.json").is_file()


class MinariEpisodes:
    """``source`` is a folder, or `minari:ID` for one below the folder in which Minari keeps its datasets."""

    def __init__(self, source: str) -> None:
        data_package("minari", what=f"{source}, a Minari dataset,")
        folder = _local_folder(source.removeprefix(PREFIX)) if source.startswith(PREFIX) else Path(source)
        if not is_minari(folder):
            raise ReverieError(
                f"there is no Minari dataset in {folder}: download it first with `minari download ID`, or name the "
                "folder that holds its `data`"
            )
        self._dataset = _opened(folder)
        name = str(self._dataset.id)
        self._reader = ObsReader(self._dataset.observation_space, name)
        self._native_action: Any = self._dataset.action_space
        self._writer = ActionWriter(self._native_action, name)
        self.spaces: Spaces | None = Spaces(obs=self._reader.spaces, action=self._writer.space)
        spec = self._dataset.env_spec
        self.task = None if spec is None else f"gym_{spec.id}"
        self.origin = f"Minari dataset {name}"

    def episodes(self) -> Iterator[Found]:
        for index in range(self._dataset.total_episodes):
            where = f"episode {index}"
            try:
                (episode,) = self._dataset.iterate_episodes([index])
                yield self._converted(episode, where)
            except (OSError, RuntimeError, KeyError, ValueError, IndexError, ReverieError) as error:
                yield Finding(where, " ".join(str(error).split()))

    def _converted(self, episode: Any, where: str) -> Found:
        steps = len(episode.rewards)
        rows = [self._reader.values(_at(episode.observations, step)) for step in range(steps + 1)]
        return ForeignEpisode(
            where=where,
            obs={key: np.stack([row[key] for row in rows]) for key in self._reader.spaces},
            action=self._action(np.asarray(episode.actions)),
            reward=np.asarray(episode.rewards),
            is_terminal=bool(np.asarray(episode.terminations)[-1]),
        )

    def _action(self, native: np.ndarray) -> np.ndarray:
        """The inverse of what ActionWriter does with an action."""
        space = self._writer.space
        if space.is_discrete:
            start = 0 if isinstance(self._native_action, gym_spaces.MultiBinary) else self._native_action.start
            return (native - start).reshape(len(native), *space.shape).astype(np.int64)
        low, high = (bound.astype(np.float64) for bound in (self._native_action.low, self._native_action.high))
        share = (native.astype(np.float64) - low) / np.where(high > low, high - low, 1.0)
        return (2.0 * share - 1.0).reshape(len(native), *space.shape).astype(np.float32)


def _local_folder(name: str) -> Path:
    return Path(importlib.import_module("minari.storage").get_dataset_path(name))


def _opened(folder: Path) -> Any:
    dataset = importlib.import_module("minari").MinariDataset
    try:
        return dataset(str(folder / "data"))
    except (OSError, KeyError, ValueError, AssertionError) as error:
        why = " ".join(str(error).split())
        raise ReverieError(f"Minari cannot open the dataset in {folder} ({why}): download it again") from error


def _at(nested: Any, step: int) -> Any:
    """One step of arrays in dicts and tuples."""
    if isinstance(nested, dict):
        return {key: _at(value, step) for key, value in nested.items()}
    if isinstance(nested, tuple):
        return tuple(_at(value, step) for value in nested)
    return nested[step]
