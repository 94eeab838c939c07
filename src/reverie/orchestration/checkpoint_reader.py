"""The reading side of a run's checkpoints: which there are, whether they are whole, and what they hold."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from reverie.orchestration.manifest import DamageError, Manifest, chunk_file
from reverie.orchestration.state_folder import read_manifest, read_state
from reverie.runtime.durable_files import TEMPORARY_PREFIX
from reverie.runtime.processors import usable_processors
from reverie.types import ReverieError, State


@dataclass(frozen=True, slots=True)
class Loaded:
    """A checkpoint that was found whole."""

    name: str
    state: State
    manifest: Manifest
    has_checked_replay: bool
    """Every byte of the replay chunks has been read and agreed with its checksum."""


class CheckpointReader:
    """Reads only JSON and arrays, and only the files that a checkpoint is made of; other files stay unopened."""

    def __init__(self, run_folder: Path) -> None:
        self.checkpoints = run_folder / "checkpoints"
        self.replay = run_folder / "replay"

    def names(self) -> list[str]:
        """All checkpoints from the oldest to the newest, whole or not."""
        if not self.checkpoints.is_dir():
            return []
        folders = [path for path in self.checkpoints.iterdir() if path.is_dir()]
        return sorted(path.name for path in folders if not path.name.startswith(TEMPORARY_PREFIX))

    def chunk_path(self, buffer: str, index: int) -> Path:
        return self.replay / buffer / chunk_file(index)

    def manifest(self, name: str) -> Manifest:
        try:
            return read_manifest(self.checkpoints / name)
        except ReverieError as error:
            raise ReverieError(f"cannot read checkpoint {name} in {self.checkpoints}: {error}") from error

    def read(self, name: str, *, with_replay: bool) -> Loaded:
        """The checkpoint after every checksum agreed, those of its replay chunks only if asked; else DamageError."""
        manifest = self.manifest(name)
        state = read_state(self.checkpoints / name, manifest)
        if with_replay:
            self._check_chunks(manifest)
        return Loaded(name, state, manifest, has_checked_replay=with_replay)

    def _check_chunks(self, manifest: Manifest) -> None:
        """DamageError for the first chunk that differs from its record. All processors help: a disk can be faster than
        one of them makes checksums."""
        chunks = [
            (record, self.chunk_path(buffer, index))
            for buffer, records in manifest.chunks.items()
            for index, record in records.items()
        ]
        with ThreadPoolExecutor(usable_processors()) as threads:
            problems = threads.map(lambda one: one[0].problem(one[1]), chunks)
            for (_, path), problem in zip(chunks, problems, strict=True):
                if problem is not None:
                    raise DamageError(f"replay/{path.parent.name}/{path.name}: {problem}")

    def is_complete(self, name: str) -> bool:
        """The cheap check: a good manifest, and every file that it names present in its full length."""
        try:
            manifest = self.manifest(name)
        except DamageError:
            return False
        own = [record.size_problem(self.checkpoints / name / file) for file, record in manifest.files.items()]
        chunks = [
            record.size_problem(self.chunk_path(buffer, index))
            for buffer, records in manifest.chunks.items()
            for index, record in records.items()
        ]
        return all(problem is None for problem in [*own, *chunks])

    def is_whole(self, name: str) -> bool:
        """Complete, and its own files agree with their checksums; chunks are write-once and only measured."""
        if not self.is_complete(name):
            return False
        manifest = self.manifest(name)
        return all(rec.problem(self.checkpoints / name / file) is None for file, rec in manifest.files.items())
