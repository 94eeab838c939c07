"""HDF5 files: flat ones in the manner of D4RL, and those with one group per episode.

    observations, actions, rewards, terminals [, timeouts] [, next_observations]          flat: ends are in the flags
    GROUP/observations, GROUP/actions, GROUP/rewards, GROUP/terminations, ...             one group per episode

``observations`` is an array or a group of arrays by key. In these files the reward and the flags of step t are those
that action t brought, so they arrive with the observation after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from reverie.datasets.findings import Finding
from reverie.datasets.spaces_json import spaces_of
from reverie.interop.data_packages import data_package
from reverie.interop.foreign_episodes import ForeignEpisode, Found, Note, closed
from reverie.types import ReverieError, Spaces

SUFFIXES = (".h5", ".hdf5", ".hdf")
SPACES_ATTRIBUTE = "reverie_spaces"
"""Of the files that Reverie exports: it says what the arrays alone do not."""

_NAMES = {
    "observations": ("observations", "obs"),
    "actions": ("actions",),
    "rewards": ("rewards",),
    "terminals": ("terminals", "terminations", "dones"),
    "timeouts": ("timeouts", "truncations"),
    "next_observations": ("next_observations", "next_obs"),
}
_CONTAINER = "data"
_AT_DAMAGE = (OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, MemoryError)
"""What h5py raises, and numpy at arrays of unexpected shapes."""


class Hdf5Episodes:
    def __init__(self, path: Path) -> None:
        self._h5py = data_package("h5py", what=f"{path.name}, an HDF5 file,")
        self._files = [path] if path.is_file() else sorted(file for s in SUFFIXES for file in path.rglob(f"*{s}"))
        self._root = path if path.is_dir() else path.parent
        self.spaces = self._declared()
        self.task: str | None = None
        self.origin = f"HDF5 episodes of {path.name}"

    def episodes(self) -> Iterator[Found]:
        for file in self._files:
            where = str(file.relative_to(self._root))
            try:
                with self._h5py.File(file, "r") as root:
                    findings = [*self._leading_out(root, where)]
                    yield from findings or self._in_file(root, where)
            except _AT_DAMAGE as error:
                yield Finding(where, f"not a readable HDF5 file ({' '.join(str(error).split())})")

    def _in_file(self, root: Any, where: str) -> Iterator[Found]:
        parts = _parts(root)
        yield from _left_out(root)
        if "actions" in parts or "observations" in parts:
            yield from self._in_flat(parts, where)
            return
        holder = root[_CONTAINER] if isinstance(root.get(_CONTAINER), self._h5py.Group) else root
        groups = [name for name in holder if isinstance(holder[name], self._h5py.Group)]
        if not groups:
            yield Finding(where, "missing, and there is no group that could be an episode", "observations")
        for name in sorted(groups, key=_natural):
            group = _parts(holder[name])
            yield from self._in_group(group, f"{where}, {holder[name].name.strip('/')}")

    def _in_flat(self, parts: Mapping[str, Any], where: str) -> Iterator[Found]:
        """Episodes end where a flag says so, and with the file."""
        findings = [*_missing(parts, where), *self._uneven(parts, where)]
        if findings:
            yield from findings
            return
        if "timeouts" not in parts:
            yield Note("the file has no timeouts: only terminals end an episode in it")
        is_terminal = np.asarray(parts["terminals"]).reshape(-1) != 0
        ends = is_terminal | (np.asarray(parts["timeouts"]).reshape(-1) != 0 if "timeouts" in parts else False)
        ends[-1:] = True
        start = 0
        for stop in np.flatnonzero(ends) + 1:
            rows = slice(start, int(stop))
            following = parts.get("next_observations")
            yield from closed(
                self._by_key(parts["observations"], rows),
                None if following is None else self._by_key(following, rows),
                parts["actions"][rows],
                parts["rewards"][rows],
                is_terminal=bool(is_terminal[stop - 1]),
                where=f"{where}, rows {start} to {int(stop) - 1}",
            )
            start = int(stop)

    def _in_group(self, parts: Mapping[str, Any], where: str) -> Iterator[Found]:
        findings = [*_missing(parts, where)]
        if findings:
            yield from findings
            return
        obs, whole = self._by_key(parts["observations"], slice(None)), slice(None)
        action, reward = parts["actions"][whole], parts["rewards"][whole]
        flags = np.asarray(parts["terminals"]).reshape(-1) != 0
        if not flags.size or flags[:-1].any():
            what = "set before the last step" if flags.size else "empty"
            yield Finding(where, what, "terminals", int(flags.argmax()) if flags.size else None)
            return
        lengths = {len(value) if value.ndim else 0 for value in obs.values()}
        if lengths == {len(reward)}:  # else one more, or a mistake that is found later
            following = parts.get("next_observations")
            after = None if following is None else self._by_key(following, whole)
            yield from closed(obs, after, action, reward, is_terminal=bool(flags[-1]), where=where)
            return
        yield ForeignEpisode(where=where, obs=obs, action=action, reward=reward, is_terminal=bool(flags[-1]))

    def _by_key(self, node: Any, rows: slice) -> dict[str, np.ndarray]:
        """The arrays of observations; a single one is called by its kind."""
        if isinstance(node, self._h5py.Group):
            return {key: _rows(leaf, rows) for key, leaf in self._leaves(node).items()}
        value = _rows(node, rows)
        return {"image" if value.dtype == np.uint8 and value.ndim in (3, 4) else "vector": value}

    def _leaves(self, group: Any) -> dict[str, Any]:
        """Every array below the group, not read yet."""
        found: dict[str, Any] = {}
        for name in group:
            if isinstance(group[name], self._h5py.Group):
                found |= {f"{name}/{key}": leaf for key, leaf in self._leaves(group[name]).items()}
            else:
                found[name] = group[name]
        return found

    def _uneven(self, parts: Mapping[str, Any], where: str) -> Iterator[Finding]:
        flat = {name: node for name, node in parts.items() if not isinstance(node, self._h5py.Group)}
        for name in parts.keys() - flat.keys():
            flat |= {f"{name}/{key}": value for key, value in self._leaves(parts[name]).items()}
        lengths = {name: node.shape[0] if node.shape else 0 for name, node in flat.items()}
        usual = max(lengths.values(), key=list(lengths.values()).count, default=0)
        for name, length in lengths.items():
            if length != usual:
                yield Finding(where, f"{length} rows instead of {usual}", name, min(length, usual))

    def _leading_out(self, group: Any, where: str) -> Iterator[Finding]:
        """A stranger's file must not lead to other files: neither by a link nor by an array that is kept elsewhere."""
        for name in group:
            place = f"{group.name}/{name}".strip("/")
            if not isinstance(group.get(name, getlink=True), self._h5py.HardLink):
                yield Finding(where, "a link, which is not followed: the arrays themselves are needed", place)
                continue
            node = group[name]
            if isinstance(node, self._h5py.Group):
                yield from self._leading_out(node, where)
            elif isinstance(node, self._h5py.Dataset) and (node.external or node.is_virtual):
                yield Finding(where, "kept in another file, which is not read", place)

    def _declared(self) -> Spaces | None:
        """Where the first file says what its arrays mean, that counts for all of them."""
        for file in self._files[:1]:
            try:
                with self._h5py.File(file, "r") as root:
                    text = root.attrs.get(SPACES_ATTRIBUTE)
            except OSError:
                return None  # the file is listed among the bad ones when its episodes are asked for
            try:
                return None if text is None else spaces_of(json.loads(text))
            except (ValueError, TypeError, RecursionError) as error:
                raise ReverieError(f"{file}: its attribute {SPACES_ATTRIBUTE} does not describe spaces") from error
        return None


def _parts(group: Any) -> dict[str, Any]:
    """What the group has of the arrays that an episode is made of, under our names for them."""
    return {part: group[name] for part, names in _NAMES.items() for name in names[::-1] if name in group}


def _left_out(group: Any) -> Iterator[Note]:
    """Arrays of a file with episodes that mean nothing to us."""
    known = {name for names in _NAMES.values() for name in names}
    others = sorted(name for name in group if name not in known and name != _CONTAINER)
    if others and "actions" in group:
        yield Note(f"left out {', '.join(others)}")


def _missing(parts: Mapping[str, Any], where: str) -> Iterator[Finding]:
    optional = [name for name in ("timeouts",) if name in parts]
    for name in ("observations", "actions", "rewards", "terminals", *optional):
        if name not in parts:
            yield Finding(where, "missing", name)
        elif name != "observations" and not hasattr(parts[name], "shape"):
            yield Finding(where, "a group instead of an array", name)
        elif name in ("terminals", "timeouts") and parts[name].dtype.kind not in "fiub":
            yield Finding(where, f"{parts[name].dtype} is not a kind of number", name)


def _rows(node: Any, rows: slice) -> np.ndarray:
    return node[rows] if node.shape else np.asarray(node[()])


def _natural(name: str) -> tuple[int, str]:
    """``demo_10`` comes after ``demo_9``."""
    digits = "".join(filter(str.isdecimal, name))
    return (int(digits) if digits else -1, name)
