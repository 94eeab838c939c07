"""One state tree as a folder: ``state.json``, ``arrays.safetensors`` and a manifest with their digests.

Checkpoints and black boxes are such folders. Reading one makes arrays and plain values, and executes nothing.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError

from reverie.orchestration.manifest import ARRAYS_FILE, MANIFEST_FILE, STATE_FILE, DamageError, Manifest
from reverie.orchestration.state_tree import flattened, unflattened
from reverie.runtime.array_file import array_pieces, read_arrays
from reverie.runtime.durable_files import (
    TEMPORARY_PREFIX,
    FileRecord,
    reason,
    sync_folder,
    write_synced,
)
from reverie.types import State

ChunkRecords = Mapping[str, Mapping[int, FileRecord]]


def write_state_folder(folder: Path, state: State, chunks: ChunkRecords) -> None:
    """Make ``folder``, whole and synced. Its name is not yet safe: give a temporary one and publish it."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    text, arrays = flattened(state)
    files = {
        ARRAYS_FILE: write_synced(folder / ARRAYS_FILE, array_pieces(arrays)),
        STATE_FILE: write_synced(folder / STATE_FILE, [text]),
    }
    write_synced(folder / MANIFEST_FILE, [Manifest(files=files, chunks=chunks).to_bytes()])
    sync_folder(folder)


def temporary_name(folder: Path) -> Path:
    """Where ``folder`` is written before it is published."""
    return folder.with_name(TEMPORARY_PREFIX + folder.name)


def publish_folder(folder: Path) -> None:
    """Rename the temporary folder to ``folder``, which it replaces if that is there."""
    if folder.exists():  # rename cannot replace a full folder
        discard_folder(folder)
    temporary_name(folder).rename(folder)
    sync_folder(folder.parent)


def discard_folder(folder: Path) -> None:
    """Take a folder out of sight in one step before deleting it: half of one must not look like a whole one."""
    grave = folder.with_name(f"{TEMPORARY_PREFIX}old-{folder.name}")
    if grave.exists():
        shutil.rmtree(grave)
    folder.rename(grave)
    shutil.rmtree(grave)


def read_manifest(folder: Path) -> Manifest:
    """DamageError when it is missing or changed; ReverieError when another version of Reverie wrote it."""
    try:
        data = (folder / MANIFEST_FILE).read_bytes()
    except FileNotFoundError as error:
        raise DamageError(f"{MANIFEST_FILE}: missing") from error
    except OSError as error:
        raise DamageError(f"{MANIFEST_FILE}: {reason(error)}") from error
    return Manifest.from_bytes(data)


def read_state(folder: Path, manifest: Manifest) -> State:
    """The tree after every checksum agreed; else DamageError."""
    for file, record in manifest.files.items():
        if (problem := record.problem(folder / file)) is not None:
            raise DamageError(f"{file}: {problem}")
    try:
        arrays = read_arrays(folder / ARRAYS_FILE)
    except (SafetensorError, OSError) as error:
        raise DamageError(f"{ARRAYS_FILE}: {error}") from error
    try:
        return unflattened((folder / STATE_FILE).read_bytes(), arrays)
    except (ValueError, OSError) as error:
        raise DamageError(f"{STATE_FILE}: {error}") from error
