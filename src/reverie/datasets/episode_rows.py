"""One episode as arrays by flat name, the form in which rows lie on disk and in buffers.

    obs/KEY, reward, is_first, is_last, is_terminal, action        each with a leading axis: one entry per row

Reward and flags arrive with the observation, the action is chosen at it. In a dataset an episode begins with a first
row, whose reward is 0, and ends with a last one, whose action is 0: nothing led to the one or follows from the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TypeAlias

import numpy as np

from reverie.datasets.findings import Finding
from reverie.types import Space, Spaces

EpisodeRows: TypeAlias = Mapping[str, np.ndarray]

OBS_PREFIX = "obs/"
FLAGS = ("is_first", "is_last", "is_terminal")


def episode_rows(
    obs: Mapping[str, np.ndarray], action: np.ndarray, reward: np.ndarray, *, is_terminal: bool
) -> dict[str, np.ndarray]:
    """T + 1 observations, the T actions chosen at all but the last of them, and the T rewards that these brought."""
    rows = len(reward) + 1
    place = np.arange(rows)
    return {
        **{OBS_PREFIX + key: value for key, value in obs.items()},
        "reward": np.concatenate([np.zeros(1, np.float32), reward.astype(np.float32)]),
        "is_first": place == 0,
        "is_last": place == rows - 1,
        "is_terminal": (place == rows - 1) & is_terminal,
        "action": np.concatenate([action, np.zeros_like(action[:1])]),
    }


def expected_arrays(spaces: Spaces) -> dict[str, tuple[tuple[int, ...], np.dtype]]:
    """Shape of one row and dtype of every array that rows of these spaces have."""
    named = {OBS_PREFIX + key: space for key, space in spaces.obs.items()} | {"action": spaces.action}
    expected = {name: (space.shape, np.dtype(space.dtype)) for name, space in named.items()}
    expected |= {name: ((), np.dtype(bool)) for name in FLAGS}
    return {**expected, "reward": ((), np.dtype(np.float32))}


def row_findings(rows: EpisodeRows, spaces: Spaces, *, where: str) -> list[Finding]:
    """Everything in which ``rows`` are not an episode of a dataset with these spaces."""
    found = [*_form_findings(rows, spaces, where)]
    return found or [*_value_findings(rows, spaces, where), *_flag_findings(rows, where)]


def first_step(is_wrong: np.ndarray) -> int | None:
    """The first row in which anything is wrong."""
    wrong = is_wrong.reshape(len(is_wrong), -1).any(1)
    return int(wrong.argmax()) if wrong.any() else None


def outside_classes(value: np.ndarray, space: Space) -> np.ndarray:
    """Where discrete values are none of their classes."""
    return (value < 0) | (value >= np.array(space.classes))


def _form_findings(rows: EpisodeRows, spaces: Spaces, where: str) -> Iterator[Finding]:
    expected = expected_arrays(spaces)
    for name in sorted(expected.keys() | rows.keys()):
        key = name.removeprefix(OBS_PREFIX)
        if name not in rows or name not in expected:
            yield Finding(where, "missing" if name not in rows else "not in the other episodes", key)
            continue
        (shape, dtype), value = expected[name], rows[name]
        if value.shape[1:] != shape or value.dtype != dtype:
            yield Finding(where, f"{value.dtype} of shape {value.shape[1:]} instead of {dtype} of shape {shape}", key)
    lengths = {len(value) for value in rows.values()}
    if len(lengths) > 1:
        yield Finding(where, f"arrays of different lengths ({', '.join(map(str, sorted(lengths)))})")
    elif lengths and min(lengths) < 2:
        yield Finding(where, "fewer than two rows, so there is no step in it")


def _value_findings(rows: EpisodeRows, spaces: Spaces, where: str) -> Iterator[Finding]:
    spaces_by_name = {OBS_PREFIX + key: space for key, space in spaces.obs.items()} | {"action": spaces.action}
    for name, value in rows.items():
        key, space = name.removeprefix(OBS_PREFIX), spaces_by_name.get(name)
        if value.dtype.kind == "f" and (step := first_step(~np.isfinite(value))) is not None:
            yield Finding(where, "not a finite number", key, step)
        if space is not None and space.is_discrete and (step := first_step(outside_classes(value, space))) is not None:
            yield Finding(where, f"{value[step].tolist()} is none of the classes {space.classes}", key, step)


def _flag_findings(rows: EpisodeRows, where: str) -> Iterator[Finding]:
    place = np.arange(len(rows["reward"]))
    for name, expected in (("is_first", place == 0), ("is_last", place == len(place) - 1)):
        if (step := first_step(rows[name] != expected)) is not None:
            yield Finding(where, f"must be {bool(expected[step])} here in an episode of {len(place)} rows", name, step)
    if (step := first_step(rows["is_terminal"] & ~rows["is_last"])) is not None:
        yield Finding(where, "set before the last row", "is_terminal", step)
    if rows["reward"][0] != 0:
        yield Finding(where, "the first row has a reward, but nothing led to it", "reward", 0)
    if rows["action"][-1].any():
        yield Finding(where, "the last row has an action, but nothing follows from it", "action", len(place) - 1)
