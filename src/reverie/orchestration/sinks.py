"""Where metric lines go: a file that can be cut back, TensorBoard, and Weights & Biases."""

from __future__ import annotations

import importlib
import io
import os
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, Protocol

from reverie.orchestration.event_file import EventFile, cut_event_files
from reverie.orchestration.pictures import Picture
from reverie.types import ReverieError

WANDB_ID_FILE = "wandb_id.txt"
"""Kept in the run folder, so that a resumed run continues the same W&B run."""


NO_PICTURES: Mapping[str, Picture] = MappingProxyType({})


class LineFile:
    """A text file that grows by whole lines, each handed to the operating system at once, and can be cut back.

    ``offset`` is its length in bytes. What the file held before stays until ``cut``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = path.open("ab", buffering=0)
            self.offset = self._file.seek(0, os.SEEK_END)
        except OSError as error:
            raise self._problem("open", error) from error

    def append(self, text: str) -> None:
        rest = memoryview(f"{text}\n".encode())
        length = len(rest)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            # A full disk may have taken half a line. Cutting needs no space; should it fail, readers skip the half.
            with suppress(OSError):
                os.ftruncate(self._file.fileno(), self.offset)
            raise self._problem("write", error) from error
        self.offset += length

    def cut(self, offset: int) -> None:
        """Forget everything after the first ``offset`` bytes."""
        try:
            size = os.fstat(self._file.fileno()).st_size
            if size < offset:
                raise ReverieError(
                    f"{self._path} holds {size} bytes but the checkpoint was made when it held {offset}; "
                    "put the original file back, or start a new run."
                )
            os.ftruncate(self._file.fileno(), offset)
        except OSError as error:
            raise self._problem("cut back", error) from error
        self.offset = offset

    def sync(self) -> None:
        """Wait until the lines are on the disk."""
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._problem("write", error) from error

    def close(self) -> None:
        self._file.close()

    def _problem(self, verb: str, error: OSError) -> ReverieError:
        return ReverieError(
            f"cannot {verb} {self._path}: {error.strerror or error}; "
            "make the folder writable and free some space, then resume the run."
        )


class Sink(Protocol):
    """A second reader of the metric lines. ``step`` counts agent steps, ``line`` counts the lines of the run."""

    def write(
        self, values: Mapping[str, float], *, step: int, line: int, pictures: Mapping[str, Picture] = NO_PICTURES
    ) -> None:
        """Take one line, with the pictures that belong to it, and hand it to the operating system before returning."""
        ...

    def rewind(self, *, line: int) -> None:
        """Go back to the moment when ``line`` lines were written, the last one at ``step`` (None: no line at all)."""
        ...

    def close(self) -> None: ...


class TensorBoardSink:
    """Scalars over agent steps in ``folder``. The event file appears with the first line.

    TensorBoard keeps one value per name and step, the last one. So a line that repeats a metric while the agent steps
    stand still, as in an offline phase, is drawn one step after the line before it.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: EventFile | None = None
        self._forget()

    def write(
        self, values: Mapping[str, float], *, step: int, line: int, pictures: Mapping[str, Picture] = NO_PICTURES
    ) -> None:
        x = max(step, self._x)
        # Only metrics have a prefix. Counters are part of every line and tell nothing new at the same step.
        if x == self._x and any("/" in name and name in self._names for name in values):
            x += 1
        try:
            if self._file is None:
                self._file = EventFile(self._folder, line=line, step=self._x + 1)
            self._advance(x)
            new = {name: value for name, value in values.items() if name not in self._names}
            self._file.append(new, step=x, pictures=pictures)
        except OSError as error:
            raise self._problem(error) from error
        self._names.update(new)

    def rewind(self, *, line: int) -> None:
        """Cut the event files. The next line begins a new one."""
        self.close()
        self._forget()
        try:
            kept = cut_event_files(self._folder, line=line)
        except OSError as error:
            raise self._problem(error) from error
        for x, names in kept:
            self._advance(x)
            self._names.update(names)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError as error:
            raise self._problem(error) from error

    def _forget(self) -> None:
        self._x = -1
        self._names: set[str] = set()
        """What was already drawn at ``_x``."""

    def _advance(self, x: int) -> None:
        if x > self._x:
            self._x = x
            self._names = set()

    def _problem(self, error: OSError) -> ReverieError:
        return ReverieError(
            f"cannot write TensorBoard events to {self._folder}: {error.strerror or error}; "
            "make the folder writable and free some space, or set logging.has_tensorboard=false."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class WandbConfig:
    mode: Literal["disabled", "offline", "online"] = "disabled"
    """``offline`` writes below the run folder and never uses the network."""
    project: str = "reverie"
    entity: str | None = None
    """User or team that owns the run; None means the default of the account."""
    group: str | None = None
    """Runs of one group are drawn together, for example the seeds of one experiment."""
    name: str | None = None
    """Name shown in W&B; None means the name of the run folder."""


class WandbSink:
    """One W&B run per run folder, its charts drawn over ``agent_steps``.

    W&B cannot take a line back. It does not have to: a resumed run repeats the lines after its checkpoint exactly,
    so the lines that W&B already has are left out. Offline, each session leaves a folder of its own with the same id.
    """

    def __init__(self, folder: Path, *, config: WandbConfig, run_config: Mapping[str, Any]) -> None:
        if config.mode == "offline":
            os.environ["WANDB_ERROR_REPORTING"] = "false"  # crash reports are the one thing offline mode still sends
        self._wandb = imported_wandb()
        try:
            self._run = self._wandb.init(
                mode=config.mode,
                project=config.project,
                entity=config.entity,
                group=config.group,
                name=config.name or folder.resolve().name,
                id=_run_id(folder / WANDB_ID_FILE),
                resume="allow",
                dir=str(folder),
                config=dict(run_config),
                # Capturing the console would tear the live display apart.
                settings=self._wandb.Settings(console="off", silent=True, disable_git=True, save_code=False),
            )
        except self._wandb.errors.Error as error:
            raise ReverieError(
                f"W&B did not start ({_one_line(error)}); run `wandb login`, or set logging.wandb.mode=offline."
            ) from error
        self._run.define_metric("*", step_metric="agent_steps")
        self._next_line: int = self._run.step

    def write(
        self, values: Mapping[str, float], *, step: int, line: int, pictures: Mapping[str, Picture] = NO_PICTURES
    ) -> None:
        if line >= self._next_line:
            media = {name: self._media(picture) for name, picture in pictures.items()}
            self._run.log({**values, **media}, step=line, commit=True)

    def _media(self, picture: Picture) -> Any:
        if picture.format == "gif":
            return self._wandb.Video(io.BytesIO(picture.data), format="gif")
        from PIL import Image

        return self._wandb.Image(Image.open(io.BytesIO(picture.data)))

    def rewind(self, *, line: int) -> None:
        """Nothing to undo: ``write`` leaves out the lines that W&B already has."""

    def close(self) -> None:
        self._run.finish()


def imported_wandb() -> Any:
    try:
        return importlib.import_module("wandb")
    except ModuleNotFoundError as error:
        if error.name != "wandb":
            raise
        raise ReverieError(
            'logging.wandb.mode needs the package wandb: run `pip install "reverie[wandb]"`, '
            "or set logging.wandb.mode=disabled."
        ) from error


def _run_id(path: Path) -> str:
    """The id in the file, or a new one, written there."""
    try:
        if path.exists() and (known := path.read_text(encoding="utf-8").strip()):
            return known
        fresh = secrets.token_hex(8)  # not a seeded stream: two runs with one seed are two runs in W&B
        path.write_text(fresh + "\n", encoding="utf-8")
    except OSError as error:
        raise ReverieError(f"cannot keep the W&B id in {path}: {error.strerror or error}; make it writable.") from error
    return fresh


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
