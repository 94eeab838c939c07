"""Checkpoints that survive a kill at any moment: whole or not there, checked on reading, the one before kept.

    <run>/checkpoints/<name>/{state.json, arrays.safetensors, manifest.json}     <run>/checkpoints/latest
    <run>/replay/<buffer>/<chunk index>.safetensors

A save writes the new replay chunks, then a folder under a temporary name, renames it, moves ``latest``, and only then
removes what is no longer needed. Names sort by time.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from reverie.orchestration.checkpoint_reader import CheckpointReader, Loaded
from reverie.orchestration.command_name import reverie_command
from reverie.orchestration.manifest import DamageError, chunk_file
from reverie.orchestration.recurrence import Recurrence
from reverie.orchestration.state_folder import discard_folder, publish_folder, temporary_name, write_state_folder
from reverie.runtime.array_file import array_pieces, mapped_arrays
from reverie.runtime.durable_files import (
    TEMPORARY_PREFIX,
    FileRecord,
    reason,
    remedy,
    replace_file,
    sync_folder,
)
from reverie.types import ReverieError, State

ChunkRecords = dict[str, dict[int, FileRecord]]

_CHECKPOINT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")
_LATEST = "latest"


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointConfig:
    every_steps: int = 10_000
    """Agent steps between two checkpoints."""
    every_updates: int | None = None
    """Updates between two checkpoints, where phases learn without taking steps."""
    keep: int = 2
    """Checkpoints kept; at least two, so that a damaged one has a predecessor."""

    def __post_init__(self) -> None:
        if self.every_steps < 1:
            raise ReverieError(f"checkpoint.every_steps is {self.every_steps}; it must be at least 1")
        if self.every_updates is not None and self.every_updates < 1:
            raise ReverieError(f"checkpoint.every_updates is {self.every_updates}; it must be at least 1, or null")
        if self.keep < 2:
            raise ReverieError(f"checkpoint.keep is {self.keep}; it must be at least 2, to have a spare")


class ChunkedBuffer(Protocol):
    """A buffer whose full chunks never change again. The rest of its state goes into the checkpoint's tree."""

    def closed_chunks(self) -> range:
        """Indices of the full chunks still needed. An index is never used twice."""
        ...

    def chunk(self, index: int) -> dict[str, Tensor]: ...

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None: ...


class CheckpointManager:
    """Writes and reads the checkpoints of one run folder. One process at a time: the run folder's lock sees to that."""

    def __init__(self, folder: Path, *, config: CheckpointConfig, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._reader = CheckpointReader(folder)
        self._checkpoints = self._reader.checkpoints
        self._replay = self._reader.replay
        self._config = config
        self._say = say
        self._recurrence = Recurrence(every_steps=config.every_steps, every_updates=config.every_updates)
        # Chunks that are surely on disk as this process knows them. Any other file was left behind by a crash.
        self._known: ChunkRecords = {}
        # Checkpoints later than the one this process went on from: damaged, and never to be mistaken for its own.
        self._abandoned: set[str] = set()

    # When

    def should_save(self, agent_steps: int, updates: int = 0) -> bool:
        """True once for each multiple of ``every_steps`` or ``every_updates`` that was reached or passed.

        Asking again gives False. Saves for other reasons, such as a signal, do not move the points: they depend on the
        counts alone.
        """
        is_due = self._recurrence.is_due(agent_steps, updates)
        self._recurrence.mark(agent_steps, updates)
        return is_due

    def get_state(self) -> State:
        return {"last_asked": self._recurrence.steps, "last_updates": self._recurrence.updates}

    def set_state(self, state: State) -> None:
        self._recurrence.mark(state["last_asked"], state.get("last_updates", 0))  # steps alone until there were both

    # Saving

    def save(self, name: str, state: State, buffers: Mapping[str, ChunkedBuffer]) -> Path:
        """Make the checkpoint ``name``, or only point ``latest`` at it when it is there and whole already."""
        if not _CHECKPOINT_NAME.fullmatch(name) or name == _LATEST:
            raise ValueError(f"{name!r} cannot name a checkpoint")
        with self._reported(f"save checkpoint {name}"):
            if name in self._abandoned or not self._reader.is_whole(name):
                chunks = self._write_chunks(buffers)
                self._write_folder(name, state, chunks)
                self._publish(name)
                self._abandoned.discard(name)
            self._point_latest(name)
        with self._reported(f"remove what is older than checkpoint {name}"):
            self._prune(name)
        return self._checkpoints / name

    def _write_chunks(self, buffers: Mapping[str, ChunkedBuffer]) -> ChunkRecords:
        needed: ChunkRecords = {}
        for name, buffer in buffers.items():
            known = self._known.setdefault(name, {})
            for index in buffer.closed_chunks():
                if index not in known:
                    known[index] = self._write_chunk(name, index, buffer.chunk(index))
            needed[name] = {index: known[index] for index in buffer.closed_chunks()}
        return needed

    def replay_folder(self, buffer: str) -> Path:
        return self._replay / buffer

    def written_chunk(self, buffer: str, index: int, arrays: dict[str, Tensor]) -> dict[str, Tensor]:
        """For a buffer that lives on the disk: put a closed chunk there at once, and give it back mapped."""
        with self._reported(f"write replay chunk {index} of {buffer}"):
            self._known.setdefault(buffer, {})[index] = self._write_chunk(buffer, index, arrays)
            return mapped_arrays(self._reader.chunk_path(buffer, index))

    def _write_chunk(self, buffer: str, index: int, arrays: dict[str, Tensor]) -> FileRecord:
        folder = self.replay_folder(buffer)
        if not folder.is_dir():
            folder.mkdir(parents=True)
            sync_folder(self._replay)
            sync_folder(self._folder)
        return replace_file(self._reader.chunk_path(buffer, index), array_pieces(arrays))

    def _write_folder(self, name: str, state: State, chunks: ChunkRecords) -> None:
        write_state_folder(temporary_name(self._checkpoints / name), state, chunks)

    def _publish(self, name: str) -> None:
        """Only a damaged folder can be in its place: else this save would have written nothing."""
        publish_folder(self._checkpoints / name)
        sync_folder(self._folder)

    def _point_latest(self, name: str) -> None:
        replace_file(self._checkpoints / _LATEST, [f"{name}\n".encode()])

    def _prune(self, newest: str) -> None:
        """Keep ``newest`` and the whole ones before it, up to ``keep`` together, and the chunks that they name."""
        names = self._reader.names()
        spare = [name for name in names if name not in {newest, *self._abandoned} and self._reader.is_complete(name)]
        kept = [*spare[1 - self._config.keep :], newest]
        for name in names:
            if name not in kept:
                discard_folder(self._checkpoints / name)
        manifests = [self._reader.manifest(name) for name in kept]
        for folder in self._replay.iterdir() if self._replay.is_dir() else ():
            needed = {chunk_file(index) for manifest in manifests for index in manifest.chunks.get(folder.name, ())}
            for path in folder.glob("*.safetensors"):
                if path.name not in needed:
                    path.unlink()
        self._remove_temporary(ignore_errors=False)

    def _remove_temporary(self, *, ignore_errors: bool) -> None:
        for path in [*self._checkpoints.glob(TEMPORARY_PREFIX + "*"), *self._replay.glob(f"*/{TEMPORARY_PREFIX}*")]:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=ignore_errors)
                continue
            try:
                path.unlink()
            except OSError:
                if not ignore_errors:
                    raise

    @contextmanager
    def _reported(self, doing: str) -> Iterator[None]:
        """Turn the system's refusals into a sentence, after clearing away what the attempt left behind."""
        try:
            yield
        except OSError as error:
            self._remove_temporary(ignore_errors=True)
            raise ReverieError(
                f"cannot {doing} in {self._folder}: {reason(error)}; {self.what_is_left()}. "
                f"{remedy(error)}, then `{reverie_command('resume', str(self._folder))}`."
            ) from error

    def what_is_left(self) -> str:
        """For a run that ends before its time."""
        names = [name for name in self._reader.names() if name not in self._abandoned]
        whole = [name for name in names if self._reader.is_complete(name)]
        return f"the last good checkpoint {whole[-1]} is untouched" if whole else "the run has no checkpoint yet"

    # Loading

    def load(self, *, with_replay: bool = True) -> Loaded | None:
        """The newest whole checkpoint, or None when the run has none. Every damaged one on the way is reported.

        ``with_replay`` counts a checkpoint with a damaged or missing replay chunk as damaged; weights alone do not
        need the chunks.
        """
        damages: list[str] = []
        names = self._reader.names()
        for name in reversed(names):
            try:
                loaded = self._reader.read(name, with_replay=with_replay)
            except DamageError as damage:
                damages.append(f"checkpoint {name} is damaged ({damage})")
                continue
            self._abandoned = set(names[names.index(name) + 1 :])
            self._report(damages, loaded)
            return loaded
        if damages:
            raise ReverieError(
                f"no checkpoint in {self._checkpoints} can be used: {'; '.join(damages)}. "
                "Restore the folder from a copy, or start a new run."
            )
        self._report_latest("starting without a checkpoint")
        return None

    def load_named(self, name: str, *, with_replay: bool = False) -> Loaded:
        """The checkpoint that the user asked for. Damage is an error here: no other one will do."""
        names = self._reader.names()
        if name not in names:
            known = ", ".join(names) if names else "none"
            raise ReverieError(f"there is no checkpoint {name!r} in {self._checkpoints}; there is: {known}")
        try:
            return self._reader.read(name, with_replay=with_replay)
        except DamageError as damage:
            raise ReverieError(f"checkpoint {name} is damaged ({damage}); choose another one") from damage

    def restore_buffers(self, loaded: Loaded, buffers: Mapping[str, ChunkedBuffer]) -> None:
        """Feed every buffer the chunks that the checkpoint names, each checked first. ``set_state`` comes after."""
        differing = sorted(loaded.manifest.chunks.keys() ^ buffers.keys())
        if differing:
            raise ReverieError(
                f"checkpoint {loaded.name} and this run differ in their buffers ({', '.join(differing)}): "
                "use the same buffers as the run that wrote it"
            )
        for name, records in loaded.manifest.chunks.items():
            for index, record in records.items():
                path = self._reader.chunk_path(name, index)
                problem = record.size_problem(path) if loaded.has_checked_replay else record.problem(path)
                if problem is not None:
                    raise ReverieError(f"replay chunk {path} is damaged ({problem}): restore this file from a copy")
                with self._reported(f"read replay chunk {path.name} of {name}"):
                    buffers[name].load_chunk(index, mapped_arrays(path))
            self._known[name] = dict(records)

    def _report(self, damages: list[str], loaded: Loaded) -> None:
        step = loaded.state.get("global_step")
        using = f"using {loaded.name}" + ("" if step is None else f" from step {step}")
        for damage in damages:
            self._say(f"{damage}; {using}")
        self._report_latest(using)

    def _report_latest(self, consequence: str) -> None:
        latest = self._checkpoints / _LATEST
        named = latest.read_text(errors="replace").strip() if latest.is_file() else None
        # Missing is normal (killed before the first pointer), older too; a name that is not there means a loss.
        if named is not None and named not in self._reader.names():
            self._say(f"{latest} names {named!r}, which is not there; {consequence}")
