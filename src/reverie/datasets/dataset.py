"""A dataset on disk, for reading: arrays and JSON only, so that opening a stranger's executes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from torch import Tensor

from reverie.datasets.episode_rows import EpisodeRows, expected_arrays
from reverie.datasets.index import INDEX_FILE, DatasetIndex, RowsFile
from reverie.runtime.array_file import read_arrays
from reverie.runtime.durable_files import reason
from reverie.types import ReverieError


class Dataset:
    """The folder at ``path``. The index is read at once, rows when they are asked for, each file checked before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.index = _read_index(path)

    def arrays(self) -> Iterator[tuple[RowsFile, dict[str, Tensor]]]:
        """The rows of each file, [rows, ...] by flat name."""
        for file in self.index.files:
            yield file, self._checked(file)

    def episodes(self) -> Iterator[EpisodeRows]:
        for file, arrays in self.arrays():
            stops = np.cumsum([episode.rows for episode in file.episodes])
            for episode, stop in zip(file.episodes, stops, strict=True):
                yield {name: value[stop - episode.rows : stop].numpy() for name, value in arrays.items()}

    def problems(self, *, reads_all: bool) -> list[str]:
        """What is wrong with its files: presence and length only, or every byte."""
        found = []
        for file in self.index.files:
            path = self.path / file.name
            problem = file.record.problem(path) if reads_all else file.record.size_problem(path)
            if problem is not None:
                found.append(f"{file.name}: {problem}")
        return found

    def _checked(self, file: RowsFile) -> dict[str, Tensor]:
        path = self.path / file.name
        problem = file.record.problem(path)
        if problem is None:
            try:
                arrays = read_arrays(path)
            except (SafetensorError, OSError) as error:
                problem = str(error)
            else:
                problem = self._misfit(file, arrays)
                if problem is None:
                    return arrays
        raise ReverieError(f"the dataset file {path} is damaged ({problem}): restore it from a copy")

    def _misfit(self, file: RowsFile, arrays: dict[str, Tensor]) -> str | None:
        """A checksum proves that a file is the one that was written, not that a good program wrote it."""
        expected = expected_arrays(self.index.spaces)
        if arrays.keys() != expected.keys():
            return f"it holds {', '.join(sorted(arrays))}"
        for name, (shape, dtype) in expected.items():
            value = arrays[name]
            if tuple(value.shape) != (file.rows, *shape) or str(value.dtype) != f"torch.{dtype}":
                return f"{name} is {value.dtype} of shape {tuple(value.shape)}"
        return None


def _read_index(path: Path) -> DatasetIndex:
    file = path / INDEX_FILE
    if not file.is_file():
        why = f"it holds no {INDEX_FILE}" if path.exists() else "it does not exist"
        raise ReverieError(
            f"`{path}` is no dataset of Reverie: {why} (`reverie data import` makes one of other "
            "formats, `reverie record` a new one)"
        )
    try:
        return DatasetIndex.from_bytes(file.read_bytes())
    except OSError as error:
        raise ReverieError(f"cannot read {file}: {reason(error)}") from error
    except ValueError as error:
        raise ReverieError(f"{file} is damaged ({error}): restore the dataset from a copy") from error
    except ReverieError as error:
        raise ReverieError(f"{path}: {error}") from error
