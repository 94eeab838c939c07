"""Finds a Python of a wanted version on this machine, or lets uv fetch one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from reverie.types import ReverieError

_PROBE_SECONDS = 30


def uv_program() -> str | None:
    """The path of a uv that runs: beside this Python, or on PATH."""
    beside = Path(sys.executable).with_name("uv")
    for program in (str(beside), shutil.which("uv")):
        if program is not None and _output([program, "--version"]) is not None:
            return program
    return None


def suitable_python(versions: Sequence[str], *, uv: str | None, say: Callable[[str], None]) -> Path:
    """The first Python that has one of the ``versions`` (the best first) and can make an environment."""
    for version in versions:
        for candidate in _candidates(version, uv):
            if _is_usable(candidate, version, needs_venv=uv is None):
                return candidate
    wanted = " or ".join(versions)
    if uv is None:
        raise ReverieError(f"No Python {wanted} was found: install one, or install uv, which can fetch it.")
    refusals: list[str] = []
    for version in versions:
        say(f"no Python {wanted} here; uv fetches {version}")
        done = subprocess.run([uv, "python", "install", version], capture_output=True, text=True, check=False)
        found = _output([uv, "python", "find", version])
        if done.returncode == 0 and found and _is_usable(Path(found), version, needs_venv=False):
            return Path(found)
        refusals.append(" ".join(done.stderr.split()) or f"exit code {done.returncode}")
    raise ReverieError(f"No Python {wanted} was found, and uv could not fetch it ({refusals[0]}): install one.")


def _candidates(version: str, uv: str | None) -> Iterator[Path]:
    if f"{sys.version_info.major}.{sys.version_info.minor}" == version:
        yield Path(sys.executable)
    on_path = shutil.which(f"python{version}")
    if on_path is not None:
        yield Path(on_path)
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True)
    found = _output([uv, "python", "find", version]) if uv is not None else None
    if found:
        yield Path(found)


def _is_usable(python: Path, version: str, *, needs_venv: bool) -> bool:
    """Whether it runs and is what its name says: pyenv puts names on PATH that only print an error."""
    modules = "import venv, ensurepip; " if needs_venv else ""
    code = f"{modules}import sys; print('%d.%d' % sys.version_info[:2])"
    return _output([str(python), "-I", "-c", code]) == version


def _output(command: list[str]) -> str | None:
    """What a program prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PROBE_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
