"""The list of everything that belongs to one checkpoint, with sizes and checksums, its own checksum included."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from reverie.runtime.durable_files import FileRecord
from reverie.runtime.signed_json import signed, verified
from reverie.types import ReverieError

VERSION = 2
MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.json"
ARRAYS_FILE = "arrays.safetensors"

_BUFFER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class DamageError(Exception):
    """A checkpoint that is not whole. The text says which file, and what is wrong with it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """``files`` lie in the checkpoint's own folder; ``chunks`` are replay chunks by buffer and index."""

    files: Mapping[str, FileRecord]
    chunks: Mapping[str, Mapping[int, FileRecord]]

    def to_bytes(self) -> bytes:
        files = {name: asdict(record) for name, record in self.files.items()}
        chunks = {
            buffer: {chunk_file(index): asdict(record) for index, record in records.items()}
            for buffer, records in self.chunks.items()
        }
        return signed({"version": VERSION, "files": files, "chunks": chunks})

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """DamageError when a single bit differs from what was written; ReverieError for another format version."""
        content = _verified(data)
        if content.get("version") != VERSION:
            raise ReverieError(
                f"the checkpoint has format version {content.get('version')} and this Reverie reads version {VERSION}: "
                "open the run with the Reverie that wrote it (run.json names its version)"
            )
        try:
            files = {name: _record(entry) for name, entry in content["files"].items()}
            chunks = {
                _buffer_name(buffer): {_chunk_index(name): _record(entry) for name, entry in entries.items()}
                for buffer, entries in content["chunks"].items()
            }
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamageError(f"{MANIFEST_FILE}: not a manifest") from error
        if set(files) != {STATE_FILE, ARRAYS_FILE}:
            raise DamageError(f"{MANIFEST_FILE}: lists {sorted(files)}")
        return cls(files=files, chunks=chunks)


def chunk_file(index: int) -> str:
    return f"{index:08d}.safetensors"


def _verified(data: bytes) -> dict[str, Any]:
    try:
        return verified(data)
    except ValueError as error:
        raise DamageError(f"{MANIFEST_FILE}: {error}") from error


def _record(entry: dict[str, Any]) -> FileRecord:
    return FileRecord(size=int(entry["size"]), digest=str(entry["digest"]))


# A stranger's manifest must not lead out of the run folder: names are checked, never joined as they come.
def _buffer_name(name: str) -> str:
    if not _BUFFER_NAME.fullmatch(name):
        raise ValueError(f"buffer name {name!r}")
    return name


def _chunk_index(name: str) -> int:
    index = int(name.removesuffix(".safetensors"))
    if index < 0 or chunk_file(index) != name:
        raise ValueError(f"chunk name {name!r}")
    return index
