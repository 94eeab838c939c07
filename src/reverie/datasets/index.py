"""What a dataset consists of: its spaces, its files with sizes and checksums, its episodes, and its own checksum."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

from reverie.datasets.spaces_json import spaces_content, spaces_of
from reverie.runtime.durable_files import FileRecord
from reverie.runtime.signed_json import content_digest, signed, verified
from reverie.types import ReverieError, Spaces

VERSION = 1
INDEX_FILE = "index.json"
End = Literal["terminal", "limit"]
"""Whether an episode came to an end of its own, or a time limit (or the end of the recording) cut it off."""

_FILE_NAME = re.compile(r"rows-\d{8}\.safetensors")


@dataclass(frozen=True, kw_only=True, slots=True)
class EpisodeRecord:
    rows: int
    score: float
    """Undiscounted sum of rewards."""
    end: End


@dataclass(frozen=True, kw_only=True, slots=True)
class RowsFile:
    """Whole episodes, one after the other, in one file."""

    name: str
    record: FileRecord
    episodes: tuple[EpisodeRecord, ...]

    @property
    def rows(self) -> int:
        return sum(episode.rows for episode in self.episodes)


@dataclass(frozen=True, kw_only=True)
class DatasetIndex:
    spaces: Spaces
    files: tuple[RowsFile, ...]
    task: str | None
    """What the episodes were played in, where that is known."""
    origin: str
    """Where the episodes come from, in words."""

    @property
    def episodes(self) -> tuple[EpisodeRecord, ...]:
        return tuple(episode for file in self.files for episode in file.episodes)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.record.size for file in self.files)

    @cached_property
    def digest(self) -> str:
        """The checksum of everything: two datasets with the same one hold the same rows."""
        return content_digest(self._content())

    def to_bytes(self) -> bytes:
        return signed(self._content())

    @classmethod
    def from_bytes(cls, data: bytes) -> DatasetIndex:
        """ValueError says what is wrong with it; ReverieError where another version of Reverie wrote it."""
        content = verified(data)
        if content.get("version") != VERSION:
            raise ReverieError(
                f"the dataset has format version {content.get('version')} and this Reverie reads version {VERSION}: "
                "use the Reverie that wrote it, or import it again"
            )
        try:
            files = tuple(_rows_file(entry) for entry in content["files"])
            task, origin, spaces = content["task"], str(content["origin"]), spaces_of(content["spaces"])
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError("not the index of a dataset") from error
        index = cls(spaces=spaces, files=files, task=task, origin=origin)
        if len({file.name for file in files}) != len(files) or not index.rows:
            raise ValueError("its files are not those of a dataset")
        return index

    def _content(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "spaces": spaces_content(self.spaces),
            "files": [
                {
                    "name": file.name,
                    **asdict(file.record),
                    "episodes": [asdict(episode) for episode in file.episodes],
                }
                for file in self.files
            ],
            "task": self.task,
            "origin": self.origin,
        }


def rows_file_name(number: int) -> str:
    return f"rows-{number:08d}.safetensors"


# A stranger's index must not lead out of its folder: names are checked, never joined as they come.
def _rows_file(entry: dict[str, Any]) -> RowsFile:
    if not _FILE_NAME.fullmatch(entry["name"]):
        raise ValueError(f"file name {entry['name']!r}")
    record = FileRecord(size=int(entry["size"]), digest=str(entry["digest"]))
    return RowsFile(name=entry["name"], record=record, episodes=tuple(map(_episode, entry["episodes"])))


def _episode(entry: dict[str, Any]) -> EpisodeRecord:
    if entry["end"] not in ("terminal", "limit") or int(entry["rows"]) < 2:
        raise ValueError(f"episode {entry!r}")
    return EpisodeRecord(rows=int(entry["rows"]), score=float(entry["score"]), end=entry["end"])
