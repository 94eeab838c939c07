"""Small episodes for tests of datasets: rows as Reverie keeps them, and files as other codes keep them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reverie.datasets.episode_rows import episode_rows
from reverie.datasets.writer import DatasetWriter
from reverie.types import Space, Spaces

SPACES = Spaces(
    obs={"image": Space(shape=(4, 5, 3), dtype="uint8"), "speed/wheel": Space(shape=(2,), dtype="float32")},
    action=Space(shape=(), dtype="int64", classes=3),
)


def value_of(space: Space, count: int, rng: np.random.Generator) -> np.ndarray:
    if space.classes is not None:
        return rng.integers(0, np.array(space.classes), (count, *space.shape))
    if space.dtype == "uint8":
        return rng.integers(0, 256, (count, *space.shape), dtype=np.uint8)
    return rng.uniform(-1, 1, (count, *space.shape)).astype(np.float32)


def made_rows(spaces: Spaces, steps: int, *, is_terminal: bool, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    obs = {key: value_of(space, steps + 1, rng) for key, space in spaces.obs.items()}
    action = value_of(spaces.action, steps, rng)
    return episode_rows(obs, action, rng.normal(size=steps), is_terminal=is_terminal)


def write_dataset(path: Path, spaces: Spaces = SPACES, lengths: tuple[int, ...] = (6, 1, 9, 4), **more: Any) -> Path:
    with DatasetWriter(path, spaces=spaces, task="made_up", origin="a test", **more) as writer:
        for index, steps in enumerate(lengths):
            writer.add(made_rows(spaces, steps, is_terminal=index % 2 == 0, seed=index))
    return path


def old_dreamer(steps: int = 5, *, seed: int = 0, is_terminal: bool = True) -> dict[str, np.ndarray]:
    """The arrays of one npz file of the older Dreamer codes: row t has the action that led to it."""
    rng = np.random.default_rng(seed)
    rows = steps + 1
    choice = rng.integers(0, 4, rows)
    action = np.eye(4, dtype=np.float32)[choice]
    action[0] = 0
    place = np.arange(rows)
    return {
        "image": rng.integers(0, 256, (rows, 8, 8, 3), dtype=np.uint8),
        "action": action,
        "reward": np.append(0, rng.normal(size=steps)).astype(np.float32),
        "discount": 1 - ((place == steps) & is_terminal).astype(np.float32),
        "is_first": place == 0,
        "is_last": place == steps,
        "is_terminal": (place == steps) & is_terminal,
    }
