"""Folders of npz files, one per episode, as the older Dreamer codes kept them.

There the action in row t is the one that *led to* the observation in row t, and the first row's means nothing. In our
rows it is the one chosen *at* the observation, so actions move up by one row.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from reverie.datasets.episode_rows import first_step
from reverie.datasets.findings import Finding
from reverie.datasets.spaces_json import spaces_of
from reverie.interop.episode_forms import one_hot_finding, with_choices
from reverie.interop.foreign_episodes import ForeignEpisode, Found, Note
from reverie.types import ReverieError, Spaces

SPACES_FILE = "spaces.json"
"""Lies beside the files that Reverie exports, and says what the arrays alone do not."""

NOT_OBSERVED = ("action", "reward", "discount", "is_first", "is_last", "is_terminal", "terminal", "reset")
_FLAG_NAMES = {"is_first": ("is_first", "reset"), "is_last": ("is_last",), "is_terminal": ("is_terminal", "terminal")}
_AT_DAMAGE = (KeyError, TypeError, AttributeError, RuntimeError, MemoryError)
_NEWER_KEYS = {"stepid", "consec"}


class NpzEpisodes:
    def __init__(self, path: Path) -> None:
        self._root = path if path.is_dir() else path.parent
        self._files = sorted(path.rglob("*.npz")) if path.is_dir() else [path]
        self.spaces = _declared(self._root / SPACES_FILE)
        self.task: str | None = None
        self.origin = f"npz episodes of {path.name}"

    def episodes(self) -> Iterator[Found]:
        for file in self._files:
            where = str(file.relative_to(self._root))
            arrays = _arrays(file)
            if isinstance(arrays, str):
                yield Finding(where, arrays)
                continue
            ignored = sorted(name for name in arrays if name.startswith("log_"))
            if ignored:
                yield Note(f"left out {', '.join(ignored)}")
            findings = [*_findings({name: arrays[name] for name in arrays if name not in ignored}, where)]
            if findings:
                yield from findings
                continue
            obs = {name: value for name, value in arrays.items() if name not in (*NOT_OBSERVED, *ignored)}
            yield from self._split(obs, arrays, where)

    def _split(self, obs: Mapping[str, np.ndarray], arrays: Mapping[str, np.ndarray], where: str) -> Iterator[Found]:
        """One episode, or one from each first row to the next."""
        is_first, _, is_terminal = _flags(arrays)
        starts = [int(start) for start in np.flatnonzero(is_first)]
        if arrays["reward"].dtype.kind in "fiub" and arrays["reward"][is_first].any():
            yield Note("left out the reward of a first row, to which no action led")
        for start, stop in zip(starts, [*starts[1:], len(is_first)], strict=True):
            rows, led = slice(start, stop), slice(start + 1, stop)
            episode = ForeignEpisode(
                where=where if len(starts) == 1 else f"{where}, rows {start} to {stop - 1}",
                obs={name: value[rows] for name, value in obs.items()},
                action=arrays["action"][led],
                reward=arrays["reward"][led],
                is_terminal=bool(is_terminal[stop - 1]),
                step_offset=1,
            )
            yield self._chosen(episode)

    def _chosen(self, episode: ForeignEpisode) -> Found:
        """With the numbers of choices where the spaces ask for these and the file has one-hot vectors."""
        if self.spaces is None or not self.spaces.action.is_discrete or episode.action.dtype.kind != "f":
            return episode
        finding = one_hot_finding(episode.action, where=episode.where)
        if finding is not None:
            return finding
        return ForeignEpisode(
            where=episode.where,
            obs=episode.obs,
            action=with_choices(episode.action),
            reward=episode.reward,
            is_terminal=episode.is_terminal,
            step_offset=1,
        )


def _arrays(file: Path) -> dict[str, np.ndarray] | str:
    """Everything in the file, or what is wrong with it. Python objects are not unpacked."""
    if not zipfile.is_zipfile(file):
        return "not a readable npz file (it is no zip archive)"
    try:
        with np.load(file, allow_pickle=False) as content:
            return {name: np.asarray(content[name]) for name in content.files}
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error, *_AT_DAMAGE) as error:
        return f"not a readable npz file ({' '.join(str(error).split())})"
    except ValueError as error:
        if "pickle" in str(error):
            return "holds Python objects, which are not read: arrays of numbers are needed"
        return f"not a readable npz file ({' '.join(str(error).split())})"


def _findings(arrays: Mapping[str, np.ndarray], where: str) -> Iterator[Finding]:
    if newer := _NEWER_KEYS & arrays.keys():
        yield Finding(where, "a replay chunk of the newer code, whose actions mean something else", min(newer))
        return
    for name in ("action", "reward"):
        if name not in arrays:
            yield Finding(where, "missing", name)
    if not set(arrays) - set(NOT_OBSERVED):
        yield Finding(where, "no observation: every key but action, reward and flags would be one")
    if not {"discount", "is_terminal", "terminal"} & arrays.keys():
        yield Finding(where, "missing, and so is discount: nothing says whether the episode was cut off", "is_terminal")
    lengths = [len(value) if value.ndim else 0 for value in arrays.values()]
    usual = max(lengths, key=lengths.count, default=0)
    uneven = [(name, length) for name, length in zip(arrays, lengths, strict=True) if length != usual]
    for name, length in uneven:
        yield Finding(where, f"{length} rows instead of {usual}", name, min(length, usual))
    numbers = [name for name in ("discount", *sum(_FLAG_NAMES.values(), ())) if name in arrays]
    strange = [name for name in numbers if arrays[name].dtype.kind not in "fiub" or arrays[name].size != usual]
    for name in strange:
        yield Finding(where, f"{arrays[name].dtype} of shape {arrays[name].shape[1:]} instead of a number", name)
    if usual < 2:
        yield Finding(where, "fewer than two rows, so there is no step in it")
    elif not uneven and not strange and {"discount", "is_terminal", "terminal"} & arrays.keys():
        yield from _flag_findings(arrays, where)


def _flag_findings(arrays: Mapping[str, np.ndarray], where: str) -> Iterator[Finding]:
    is_first, is_last, is_terminal = _flags(arrays)
    if not is_first[0]:
        yield Finding(where, "not set: the file begins in the middle of an episode", "is_first", 0)
    inner = is_last[:-1] & ~is_first[1:]
    if (step := first_step(inner)) is not None:
        yield Finding(where, "set, but the next row is not a first one", "is_last", step)
    following = np.append(is_first[1:], True)
    if (step := first_step(is_terminal & ~following)) is not None:
        yield Finding(where, "set before the last row of the episode", "is_terminal", step)


def _flags(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """is_first, is_last and is_terminal; those that the file lacks follow from its ends and from the discount."""
    found: dict[str, np.ndarray] = {}
    for flag, names in _FLAG_NAMES.items():
        named = [arrays[name] for name in names if name in arrays]
        if named:
            found[flag] = named[0].reshape(len(named[0])) != 0
    rows = len(arrays["reward"]) if "reward" in arrays else len(next(iter(arrays.values())))
    is_first = found["is_first"] if "is_first" in found else np.arange(rows) == 0
    is_last = found["is_last"] if "is_last" in found else np.append(is_first[1:], True)
    is_terminal = found["is_terminal"] if "is_terminal" in found else arrays["discount"].reshape(rows) == 0
    return is_first, is_last, is_terminal


def _declared(file: Path) -> Spaces | None:
    if not file.is_file():
        return None
    try:
        return spaces_of(json.loads(file.read_bytes()))
    except (OSError, ValueError) as error:
        raise ReverieError(f"{file} does not describe spaces ({error}): mend it, or remove it") from error
