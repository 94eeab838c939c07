"""The folder of one run: how it comes into being, who may write to it, and what ``run.json`` says about it.

A folder is a run from the moment it holds ``config.yaml``, which is written last.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from reverie.runtime.durable_files import TEMPORARY_PREFIX, reason, remedy, replace_file
from reverie.types import ReverieError, Spaces

RunStatus = Literal["running", "interrupted", "finished", "failed"]

_PACKAGES = ("reverie", "torch", "numpy", "gymnasium", "hydra-core", "safetensors")


def new_run_folder(parent: Path, experiment: str) -> Path:
    """Make ``parent/{experiment}-{timestamp}``. Two processes that ask at the same moment get two folders."""
    stem = f"{experiment.replace('/', '-')}-{datetime.now():%Y%m%d-%H%M%S}"
    number = 1
    with _writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        while True:
            folder = parent / (stem if number == 1 else f"{stem}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder


class RunFolder:
    """One run's folder. Reading needs no lock; whoever trains holds it from before ``create`` to the end."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def is_run(self) -> bool:
        return (self.path / "config.yaml").is_file()

    def create(self, *, config_text: str, spaces: Spaces) -> None:
        """Turn the folder into a run: ``run.json`` first, ``config.yaml`` last and in one step."""
        if self.is_run:
            raise ReverieError(f"{self.path} already holds a run: resume it, or choose another logdir")
        self.refuse_foreign_files()
        info = {
            "status": "running",
            "spaces": asdict(spaces),
            "versions": versions(),
            "hardware": hardware(),
            "commit": source_commit(),
        }
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            self._write_info(info)
            replace_file(self.path / "config.yaml", [config_text.encode()])

    def refuse_foreign_files(self) -> None:
        """A new run would cut and prune what it takes for its own, so it begins in an empty folder only."""
        if self.path.exists() and not self.path.is_dir():
            raise ReverieError(f"{self.path} is a file: choose a folder as logdir.")
        mine = {"lock", "run.json"}
        found = sorted(path.name for path in self.path.iterdir()) if self.path.is_dir() else []
        foreign = [name for name in found if name not in mine and not name.startswith(TEMPORARY_PREFIX)]
        if foreign:
            raise ReverieError(
                f"{self.path} holds files but no run ({', '.join(foreign[:3])}): choose an empty folder as logdir."
            )

    def replace_config(self, config_text: str) -> None:
        """Keep what a resumed run was told to change, such as a longer duration, for the next resume."""
        if config_text != self.config_text():
            with _writing(self.path):
                replace_file(self.path / "config.yaml", [config_text.encode()])

    def config_text(self) -> str:
        """The resolved configuration as it was written."""
        if not self.is_run:
            raise ReverieError(f"{self.path} is not a run folder: it holds no config.yaml")
        try:
            return (self.path / "config.yaml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ReverieError(f"cannot read {self.path / 'config.yaml'}: {error}") from error

    def info(self) -> dict[str, Any]:
        """What ``run.json`` holds: status, spaces, versions, hardware, commit."""
        path = self.path / "run.json"
        try:
            info = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise ReverieError(f"cannot read {path} ({error}): restore the file from a copy of the run") from error
        if not isinstance(info, dict):
            raise ReverieError(f"{path} does not describe a run: restore the file from a copy of the run")
        return info

    def set_status(self, status: RunStatus) -> None:
        with _writing(self.path):
            self._write_info({**self.info(), "status": status})

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the run for this process alone. The lock ends with the process, however that ends."""
        with _writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._take(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _take(self, descriptor: int) -> None:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            raise ReverieError(
                f"another process ({holder or 'unknown'}) is using the run {self.path}: wait for it, stop it, "
                "or choose another logdir"
            ) from error
        except OSError as error:
            raise ReverieError(f"cannot lock {self.path / 'lock'}: {reason(error)}; choose another logdir") from error
        with _writing(self.path):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"pid {os.getpid()}\n".encode(), 0)

    def _write_info(self, info: dict[str, Any]) -> None:
        replace_file(self.path / "run.json", [json.dumps(info, indent=2).encode() + b"\n"])


def versions() -> dict[str, str]:
    """Python and the packages that can change a run's numbers, as far as they are installed."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            # Run from a source tree, Reverie itself need not be installed; then the commit says what ran.
            continue
    return found


def hardware() -> dict[str, Any]:
    """The machine in a few words. Exact resume is promised on the same machine and thread count only."""
    import torch

    return {
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpu_cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def source_commit() -> str | None:
    """The commit of the source tree that Reverie runs from, with ``+changes`` if edited; None when it is installed."""
    tree = Path(__file__).resolve().parents[3]
    if not (tree / ".git").exists():
        return None
    commit = _git_output(tree, "rev-parse", "--verify", "HEAD")
    if commit is None:
        return None
    return f"{commit}+changes" if _git_output(tree, "status", "--porcelain", "--untracked-files=no") else commit


def _git_output(tree: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(tree), *arguments], capture_output=True, text=True, timeout=10, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReverieError(
            f"cannot write to the run folder {path}: {reason(error)}. {remedy(error)}, or choose another logdir."
        ) from error
