"""Makes a dataset of Reverie out of other people's: good episodes are kept, of the others it is said what is wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from reverie.datasets.episode_rows import episode_rows, row_findings
from reverie.datasets.findings import Finding
from reverie.datasets.index import INDEX_FILE, DatasetIndex
from reverie.datasets.writer import DatasetWriter, refuse_existing
from reverie.interop.episode_forms import ActionReading, SpacesGuess, formed, with_choices
from reverie.interop.foreign_episodes import ForeignEpisode, Note, Source, length_findings
from reverie.interop.hdf5_episodes import SUFFIXES, Hdf5Episodes
from reverie.interop.minari_episodes import PREFIX, MinariEpisodes, is_minari
from reverie.interop.npz_episodes import NpzEpisodes
from reverie.types import ReverieError, Spaces


@dataclass(kw_only=True, slots=True)
class Imported:
    index: DatasetIndex | None = None
    """Of the dataset that was made; None where no episode was good."""
    findings: list[Finding] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)
    """What was done that a person should know, and to how many episodes."""


def opened_source(source: str) -> Source:
    """Which format it is, found by looking."""
    if source.startswith(PREFIX):
        return MinariEpisodes(source)
    path = Path(source)
    if not path.exists():
        raise ReverieError(f"there is no `{source}`: name a folder, a file, or {PREFIX}ID")
    if path.is_file():
        if path.suffix == ".npz":
            return NpzEpisodes(path)
        if path.suffix in SUFFIXES:
            return Hdf5Episodes(path)
        raise ReverieError(f"`{source}` is neither .npz nor HDF5 ({', '.join(SUFFIXES)})")
    if (path / INDEX_FILE).is_file():
        raise ReverieError(f"`{source}` is a dataset of Reverie already: use it as it is")
    return _folder_source(path)


def import_dataset(source: Source, dest: Path, *, reading: ActionReading, task: str | None = None) -> Imported:
    """Write the good episodes of ``source`` to ``dest``; without any, nothing is written."""
    refuse_existing(dest)
    imported = Imported()
    spaces = source.spaces or _guessed(source, reading, imported)
    if spaces is None:
        return imported
    _refuse_empty(spaces)
    try:
        with DatasetWriter(dest, spaces=spaces, task=task or source.task, origin=source.origin) as writer:
            _copy(source, writer, spaces, reading, imported)
    except _NothingGoodError:
        return imported
    imported.index = writer.index
    return imported


def _refuse_empty(spaces: Spaces) -> None:
    if not spaces.obs:
        raise ReverieError("the episodes have no observations in them: there is nothing to learn from")
    for name, space in {**spaces.obs, "the action": spaces.action}.items():
        if 0 in space.shape:
            raise ReverieError(f"{name} has the shape {space.shape}, in which there are no numbers: leave it out")


class _NothingGoodError(Exception):
    """Leaves the writer's block, so that nothing is published."""


def _folder_source(path: Path) -> Source:
    if is_minari(path):
        return MinariEpisodes(str(path))
    has_npz = any(path.rglob("*.npz"))
    has_hdf5 = any(any(path.rglob(f"*{suffix}")) for suffix in SUFFIXES)
    if has_npz == has_hdf5:
        what = "both npz and HDF5 files" if has_npz else "neither npz nor HDF5 files"
        raise ReverieError(f"`{path}` holds {what}: name a folder with one kind")
    return NpzEpisodes(path) if has_npz else Hdf5Episodes(path)


def _guessed(source: Source, reading: ActionReading, imported: Imported) -> Spaces | None:
    """What most episodes look like; None, with the findings, where none looks like an episode."""
    guess, findings = SpacesGuess(), list[Finding]()
    for found in source.episodes():
        if isinstance(found, Finding):
            findings.append(found)
        elif isinstance(found, ForeignEpisode):
            one = formed(found, reading)
            findings += one if isinstance(one, list) else []
            if not isinstance(one, list):
                guess.add(one)
    spaces = guess.spaces()
    if spaces is None:
        imported.findings = findings
    return spaces


def _copy(source: Source, writer: DatasetWriter, spaces: Spaces, reading: ActionReading, imported: Imported) -> None:
    good = 0
    for found in source.episodes():
        if isinstance(found, Note):
            imported.notes[found.text] += 1
            continue
        rows = [found] if isinstance(found, Finding) else _rows(found, spaces, reading, is_declared=bool(source.spaces))
        if isinstance(rows, list):
            imported.findings += rows
        else:
            writer.add(rows)
            good += 1
    if not good:
        raise _NothingGoodError


def _rows(
    episode: ForeignEpisode, spaces: Spaces, reading: ActionReading, *, is_declared: bool
) -> dict[str, np.ndarray] | list[Finding]:
    """The rows of a good episode, or everything that is wrong with it."""
    obs, action, reward = episode.obs, episode.action, episode.reward
    if is_declared:
        if findings := [*length_findings(episode)]:
            return findings
    else:
        one = formed(episode, reading)
        if isinstance(one, list):
            return one
        obs, action, reward = one.obs, one.action, one.reward
        if spaces.action.is_discrete and one.is_one_hot:
            action = with_choices(action)
    rows = episode_rows(obs, action, reward, is_terminal=episode.is_terminal)
    return row_findings(rows, spaces, where=episode.where) or rows
