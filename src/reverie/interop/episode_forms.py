"""Guesses the spaces of episodes that declare none, and brings them into the form of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from reverie.datasets.episode_rows import first_step
from reverie.datasets.findings import Finding
from reverie.interop.foreign_episodes import ForeignEpisode, length_findings
from reverie.types import Space, Spaces

Shapes = tuple[tuple[str, tuple[int, ...], str], ...]
"""Key, shape of a row and dtype of every observation, sorted; and of the action."""

_SLACK = 1e-4
"""How far rounding may carry an action beyond its range."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ActionReading:
    """How the numbers of actions are meant where nothing says so."""

    low: float = -1.0
    high: float = 1.0
    """The range that becomes [-1, 1]."""
    kind: Literal["auto", "vector"] = "auto"
    """``auto`` takes actions that are one-hot in every row for choices, ``vector`` for vectors."""

    def scaled(self, action: np.ndarray) -> np.ndarray:
        if (self.low, self.high) == (-1.0, 1.0):  # they stay what they are, to the last bit
            return action
        return ((action.astype(np.float64) - self.low) * (2 / (self.high - self.low)) - 1).astype(np.float32)


@dataclass(frozen=True, kw_only=True, slots=True)
class Formed:
    """Arrays that are numbers of the right kinds, with what is needed to choose the spaces."""

    obs: Mapping[str, np.ndarray]
    action: np.ndarray
    reward: np.ndarray
    is_one_hot: bool

    @property
    def shapes(self) -> Shapes:
        named = [(f"obs/{key}", value) for key, value in sorted(self.obs.items())] + [("action", self.action)]
        return tuple((name, value.shape[1:], str(value.dtype)) for name, value in named)


def formed(episode: ForeignEpisode, reading: ActionReading) -> Formed | list[Finding]:
    """The episode in numbers of the right kinds, or everything that is wrong with it."""
    findings = [*length_findings(episode)]
    if any(value.ndim == 0 for value in (*episode.obs.values(), episode.action, episode.reward)):
        return findings
    arrays: dict[str, np.ndarray] = {}
    for name, value in {**{f"obs/{key}": one for key, one in episode.obs.items()}, "action": episode.action}.items():
        one = _action(value) if name == "action" else _observation(value)
        if isinstance(one, str):
            findings.append(Finding(episode.where, one, name.removeprefix("obs/")))
        else:
            arrays[name] = one
    reward = _reward(episode.reward)
    if isinstance(reward, str):
        return [*findings, Finding(episode.where, reward, "reward")]
    findings += _number_findings(episode, {**arrays, "reward": reward})
    if findings:
        return findings
    action = arrays.pop("action")
    is_one_hot = _is_one_hot(action) and reading.kind == "auto"
    if action.dtype == np.float32 and not is_one_hot:
        action = reading.scaled(action)
        findings += _range_findings(episode, action, reading)
        action = np.clip(action, -1.0, 1.0)
    obs = {name.removeprefix("obs/"): value for name, value in arrays.items()}
    return findings or Formed(obs=obs, action=action, reward=reward, is_one_hot=is_one_hot)


class SpacesGuess:
    """Collects the forms of episodes; most of them decide."""

    def __init__(self) -> None:
        self._counts: Counter[Shapes] = Counter()
        self._has_vectors: set[Shapes] = set()
        """Shapes of which some episode has actions that are not one-hot."""
        self._top: dict[Shapes, np.ndarray] = {}

    def add(self, one: Formed) -> None:
        shapes = one.shapes
        self._counts[shapes] += 1
        if not one.is_one_hot:
            self._has_vectors.add(shapes)
        top = one.action.max(0) if one.action.dtype == np.int64 else np.zeros(0)
        self._top[shapes] = np.maximum(self._top.get(shapes, top), top)

    def spaces(self) -> Spaces | None:
        """None where there was no episode; of equally many the first wins."""
        if not self._counts:
            return None
        shapes = max(self._counts, key=lambda one: self._counts[one])
        *obs, (_, action_shape, action_dtype) = shapes
        spaces = {name.removeprefix("obs/"): _space(shape, dtype) for name, shape, dtype in obs}
        if action_dtype == "int64":
            classes = np.maximum(self._top[shapes] + 1, 2)
            action = Space(shape=action_shape, dtype="int64", classes=_plain(classes))
        elif shapes not in self._has_vectors:
            action = Space(shape=(), dtype="int64", classes=action_shape[0])
        else:
            action = Space(shape=action_shape, dtype="float32")
        return Spaces(obs=spaces, action=action)


def with_choices(action: np.ndarray) -> np.ndarray:
    """One-hot vectors as the numbers of their classes."""
    return action.argmax(-1).astype(np.int64)


def one_hot_finding(action: np.ndarray, *, where: str) -> Finding | None:
    """The first row that is not one-hot."""
    is_wrong = ~(((action == 0) | (action == 1)).all(-1) & (action.sum(-1) == 1))
    step = first_step(is_wrong)
    return None if step is None else Finding(where, f"{action[step].tolist()} is not one-hot", "action", step)


def _observation(value: np.ndarray) -> np.ndarray | str:
    """An image uint8 [T, height, width, channels], or a vector float32 [T, n]; else what is wrong."""
    row = value.shape[1:]
    if value.dtype == np.uint8 and len(row) == 2:
        return value[..., None]
    if value.dtype == np.uint8 and len(row) == 3:
        # Channels are fewer than pixels in a row or column: a smallest first axis is the channels.
        return value.transpose(0, 2, 3, 1) if row[0] < min(row[1:]) else value
    if value.dtype.kind not in "fiub":
        return f"{value.dtype} is not a kind of number"
    if len(row) > 2:
        return f"{value.dtype} of shape {row} is neither a vector nor a picture, which must be uint8"
    with np.errstate(over="ignore"):  # a number that float32 cannot hold is found as infinite
        return value.reshape(len(value), -1).astype(np.float32)


def _action(value: np.ndarray) -> np.ndarray | str:
    if value.dtype.kind not in "fiub":
        return f"{value.dtype} is not a kind of number"
    if value.ndim > 2:
        return f"an action of shape {value.shape[1:]} instead of a number or a vector"
    if value.dtype.kind == "f":
        with np.errstate(over="ignore"):
            return value.reshape(len(value), -1).astype(np.float32)
    return (value[:, 0] if value.ndim == 2 and value.shape[1] == 1 else value).astype(np.int64)


def _reward(value: np.ndarray) -> np.ndarray | str:
    if value.dtype.kind not in "fiub":
        return f"{value.dtype} is not a kind of number"
    if value.ndim != 1 and value.shape[1:] != (1,):
        return f"a reward of shape {value.shape[1:]} instead of a number"
    with np.errstate(over="ignore"):
        return value.reshape(-1).astype(np.float32)


def _number_findings(episode: ForeignEpisode, arrays: Mapping[str, np.ndarray]) -> Iterator[Finding]:
    for name, value in arrays.items():
        offset = 0 if name.startswith("obs/") else episode.step_offset
        key = name.removeprefix("obs/")
        if value.dtype.kind == "f" and (step := first_step(~np.isfinite(value))) is not None:
            yield Finding(episode.where, "not a finite number", key, step + offset)
        if name == "action" and value.dtype == np.int64 and (step := first_step(value < 0)) is not None:
            yield Finding(episode.where, "a choice below 0", key, step + offset)


def _range_findings(episode: ForeignEpisode, action: np.ndarray, reading: ActionReading) -> list[Finding]:
    step = first_step(np.abs(action) > 1 + _SLACK)
    if step is None:
        return []
    what = f"{episode.action[step].tolist()} lies outside [{reading.low:g}, {reading.high:g}]; --action-range says more"
    return [Finding(episode.where, what, "action", step + episode.step_offset)]


def _is_one_hot(action: np.ndarray) -> bool:
    is_wide = action.dtype == np.float32 and action.ndim == 2 and action.shape[1] > 1
    return bool(is_wide and one_hot_finding(action, where="") is None)


def _space(shape: tuple[int, ...], dtype: str) -> Space:
    return Space(shape=shape, dtype="uint8" if dtype == "uint8" else "float32")


def _plain(classes: np.ndarray) -> int | tuple[int, ...]:
    return tuple(int(number) for number in classes) if classes.ndim else int(classes)
