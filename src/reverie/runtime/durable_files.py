"""Files that are either whole or not there, even after a power cut: written, synced, and only then renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path

TEMPORARY_PREFIX = ".tmp-"
"""Names that start like this are unfinished. Nobody reads them, and the next save removes them."""

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FileRecord:
    """What a file must look like to be the one that was written."""

    size: int
    digest: str

    def problem(self, path: Path) -> str | None:
        """Why the file at ``path`` is not the recorded one, or None when every byte agrees."""
        size_problem = self.size_problem(path)
        if size_problem is not None:
            return size_problem
        hasher = _hasher()
        try:
            with path.open("rb") as file:
                while piece := file.read(_READ_BYTES):
                    hasher.update(piece)
        except OSError as error:
            return reason(error)
        return None if hasher.hexdigest() == self.digest else "checksum differs"

    def size_problem(self, path: Path) -> str | None:
        """The cheap half of ``problem``: presence and length, without reading."""
        try:
            size = path.stat().st_size
        except OSError as error:
            return "missing" if isinstance(error, FileNotFoundError) else reason(error)
        return None if size == self.size else f"{size} bytes instead of {self.size}"


def write_synced(path: Path, pieces: Iterable[bytes | memoryview]) -> FileRecord:
    """Write ``pieces`` to ``path`` and wait until they are on the disk. The name itself is not yet safe: see rename."""
    hasher = _hasher()
    size = 0
    with path.open("wb") as file:
        for piece in pieces:
            file.write(piece)
            hasher.update(piece)
            size += len(piece)
        file.flush()
        os.fsync(file.fileno())
    return FileRecord(size, hasher.hexdigest())


def replace_file(path: Path, pieces: Iterable[bytes | memoryview]) -> FileRecord:
    """Put a whole new file at ``path`` in one step: a reader sees the old content or the new one, never a part."""
    temporary = path.with_name(TEMPORARY_PREFIX + path.name)
    try:
        record = write_synced(temporary, pieces)
        temporary.rename(path)
    except OSError:
        with suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
    return record


def sync_folder(path: Path) -> None:
    """Make renames and new names inside the folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some network file systems cannot sync a folder and answer EINVAL; there names are as safe as they can be.
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def digest(data: bytes) -> str:
    """The checksum used in every record."""
    hasher = _hasher()
    hasher.update(data)
    return hasher.hexdigest()


def reason(error: OSError) -> str:
    """The system's own words, fit for the middle of a sentence."""
    text = error.strerror or str(error)
    return text[:1].lower() + text[1:]


def remedy(error: OSError) -> str:
    """What a user can do about a file that could not be written, fit for the start of a sentence."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "Free space"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "Make the folder writable"
    return "Check the disk"


def _hasher() -> blake2b:
    return blake2b(digest_size=32)
