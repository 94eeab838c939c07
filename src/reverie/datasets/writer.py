"""Writes a dataset under a temporary name; it gets its own name when it is whole, and is gone when it is not."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType

import numpy as np
import torch

from reverie.datasets.episode_rows import EpisodeRows, row_findings
from reverie.datasets.index import INDEX_FILE, DatasetIndex, EpisodeRecord, RowsFile, rows_file_name
from reverie.runtime.array_file import array_pieces
from reverie.runtime.durable_files import TEMPORARY_PREFIX, reason, remedy, sync_folder, write_synced
from reverie.types import ReverieError, Spaces

FILE_BYTES = 64 << 20
"""A file is closed when it holds this much; short episodes share one, and a long one has its own."""


class DatasetWriter:
    """``with DatasetWriter(...) as writer: writer.add(rows)``: the folder exists after the block, or not at all."""

    def __init__(
        self, path: Path, *, spaces: Spaces, task: str | None, origin: str, file_bytes: int = FILE_BYTES
    ) -> None:
        self._path = path.absolute()
        self._temporary = self._path.with_name(TEMPORARY_PREFIX + self._path.name)
        self._spaces, self._task, self._origin = spaces, task, origin
        self._file_bytes = file_bytes
        self._files: list[RowsFile] = []
        self._open: list[EpisodeRows] = []

    def __enter__(self) -> DatasetWriter:
        refuse_existing(self._path)
        try:
            if self._temporary.exists():  # left behind by a process that was killed
                shutil.rmtree(self._temporary)
            self._temporary.mkdir(parents=True)
        except OSError as error:
            raise self._sentence(error) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._publish()
        except OSError as problem:
            raise self._sentence(problem) from problem
        finally:
            shutil.rmtree(self._temporary, ignore_errors=True)  # the first error is the one to report

    def add(self, rows: EpisodeRows) -> None:
        """One episode. The caller has looked for mistakes that a user can mend; any other is refused here."""
        number = sum(len(file.episodes) for file in self._files) + len(self._open)
        for finding in row_findings(rows, self._spaces, where=f"episode {number}"):
            raise ReverieError(f"cannot write {self._path}: {finding}")
        self._open.append(rows)
        if sum(value.nbytes for one in self._open for value in one.values()) >= self._file_bytes:
            self._close_file()

    @property
    def index(self) -> DatasetIndex:
        """Of the files that are closed; complete after the block."""
        return DatasetIndex(spaces=self._spaces, files=tuple(self._files), task=self._task, origin=self._origin)

    def _close_file(self) -> None:
        if not self._open:
            return
        arrays = {
            name: torch.from_numpy(np.concatenate([np.ascontiguousarray(one[name]) for one in self._open]))
            for name in self._open[0]
        }
        name = rows_file_name(len(self._files))
        try:
            record = write_synced(self._temporary / name, array_pieces(arrays))
        except OSError as error:
            raise self._sentence(error) from error
        episodes = tuple(_record(rows) for rows in self._open)
        self._files.append(RowsFile(name=name, record=record, episodes=episodes))
        self._open = []

    def _publish(self) -> None:
        self._close_file()
        if not self._files:
            raise ReverieError(f"no episode has a step that could be kept, so {self._path} was not made: ask for more")
        write_synced(self._temporary / INDEX_FILE, [self.index.to_bytes()])
        sync_folder(self._temporary)
        refuse_existing(self._path)
        self._temporary.rename(self._path)
        sync_folder(self._path.parent)

    def _sentence(self, error: OSError) -> ReverieError:
        return ReverieError(
            f"cannot write the dataset {self._path}: {reason(error)}. {remedy(error)}, or choose another folder."
        )


def refuse_existing(path: Path) -> None:
    """A dataset never replaces anything."""
    if path.exists() or path.is_symlink():
        raise ReverieError(f"`{path}` exists already: choose another name, or remove it first")


def _record(rows: EpisodeRows) -> EpisodeRecord:
    return EpisodeRecord(
        rows=len(rows["reward"]),
        score=float(rows["reward"].sum(dtype=np.float64)),
        end="terminal" if rows["is_terminal"][-1] else "limit",
    )
