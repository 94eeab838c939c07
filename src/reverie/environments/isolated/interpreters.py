"""Isolated interpreters: a Python with old packages of its own, for a simulator that cannot live beside today's.

Each has a folder, named after it, with numbered builds and the file ``built.json``. That file names the build to use
and the recipe it was made from. It is written last, so a build that was interrupted is never used; and nothing is ever
moved, because a virtual environment does not survive that.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from reverie.environments.isolated.failed_download import failed_download, last_words
from reverie.environments.isolated.python_versions import suitable_python, uv_program
from reverie.environments.isolated.recipes import RECIPES, Recipe, Tool, chosen_recipe
from reverie.types import ReverieError

Say = Callable[[str], None]

_CHECK_SECONDS = 1800
"""The first start of Minecraft takes minutes."""


def interpreters_folder() -> Path:
    """Where all isolated interpreters lie: under $REVERIE_HOME, else in the user's data folder."""
    home = os.environ.get("REVERIE_HOME")
    if home:
        return Path(home) / "interpreters"
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "reverie" / "interpreters"


def interpreter_python(name: str) -> Path:
    """The Python of the isolated interpreter ``name``."""
    add = f"run `reverie env add {name}`" if name in RECIPES else "run `reverie env add FILE.toml` with its recipe"
    built = _built(interpreters_folder() / name)
    if built is None:
        raise ReverieError(f"The isolated interpreter {name} is not installed: {add}.")
    if name in RECIPES and built.recipe != _plain(RECIPES[name]):
        raise ReverieError(f"The isolated interpreter {name} was built from an older recipe: {add} again.")
    if not os.access(built.python, os.X_OK):
        raise ReverieError(f"The isolated interpreter {name} has lost its Python ({built.python}): {add} again.")
    return built.python


def add_interpreter(name: str, say: Say) -> Path:
    """Build the interpreter of a recipe, by its name or its file, unless it is there already; gives its Python."""
    recipe = chosen_recipe(name)
    folder = interpreters_folder() / recipe.name
    with _alone_in(folder):
        built = _built(folder)
        if built is not None and built.recipe == _plain(recipe) and os.access(built.python, os.X_OK):
            say(f"{recipe.name} is already there: {built.python}")
            return built.python
        _remove_builds(folder, keep=None if built is None else built.build)
        build = folder / _next_build(folder)
        try:
            python = _Builder(recipe, build, log=folder / "log.txt", say=say).run()
        except BaseException:
            shutil.rmtree(build, ignore_errors=True)
            raise
        _write(folder / "built.json", {"build": build.name, "recipe": _plain(recipe)})
        _remove_builds(folder, keep=build.name)
    say(f"{recipe.name} is ready: {python}")
    return python


@dataclass(frozen=True, slots=True)
class _Built:
    build: str
    recipe: dict[str, Any]
    python: Path


class _Builder:
    """Builds one environment in ``folder``, step by step; whatever the steps print goes to the log."""

    def __init__(self, recipe: Recipe, folder: Path, *, log: Path, say: Say) -> None:
        self._recipe = recipe
        self._folder = folder
        self._log = log
        self._say = say
        self._uv = uv_program()
        self._python = _python_in(folder)
        self._missing: list[str] = []

    def run(self) -> Path:
        recipe = self._recipe
        self._log.write_text("", encoding="utf-8")
        self._missing = [tool.cure for tool in recipe.tools if not _is_there(tool)]
        for cure in self._missing:
            # Only said: the pattern may be stricter than the simulator, and what else is missing should be seen too.
            self._say(f"{recipe.name} needs {cure}; that was not found, trying all the same")
        base = suitable_python(recipe.python, uv=self._uv, say=self._say)
        self._say(f"making an environment with {base}")
        self._step("make an environment", self._venv(base))
        if recipe.build_requirements:
            self._say(f"installing {', '.join(recipe.build_requirements)} to build with")
            self._step("install what it is built with", self._install(*recipe.build_requirements))
        if recipe.requirements:
            self._say(f"installing {', '.join(recipe.requirements)}")
            isolation = ["--no-build-isolation"] if recipe.build_requirements else []
            self._step("install its packages", self._install(*isolation, *recipe.requirements))
        self._say("checking it with one real step")
        self._step("take a step in it", [str(self._python), "-c", recipe.check], timeout_seconds=_CHECK_SECONDS)
        return self._python

    def _venv(self, base: Path) -> list[str]:
        if self._uv is not None:
            return [self._uv, "venv", "--no-project", "--python", str(base), str(self._folder)]
        return [str(base), "-m", "venv", str(self._folder)]

    def _install(self, *what: str) -> list[str]:
        if self._uv is not None:
            return [self._uv, "pip", "install", "--python", str(self._python), *what]
        return [str(self._python), "-m", "pip", "install", *what]

    def _step(self, purpose: str, command: list[str], timeout_seconds: float | None = None) -> None:
        with self._log.open("a", encoding="utf-8") as log:
            print("$", *command, file=log, flush=True)
            start = log.tell()
            try:
                code = subprocess.run(
                    command,
                    cwd=self._log.parent,
                    env=_clean_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=timeout_seconds,
                ).returncode
            except subprocess.TimeoutExpired:
                print(f"no answer within {timeout_seconds} seconds", file=log)
                code = -1
        if code != 0:
            raise ReverieError(self._failure(purpose, self._log.read_bytes()[start:].decode(errors="replace")))

    def _failure(self, purpose: str, output: str) -> str:
        download = failed_download(output)
        what = f"the download of {download} failed" if download else f"it ended with: {last_words(output)}"
        cure = "get that through (a network, a proxy, a mirror) and run this again" if download else "read the log"
        also = "".join(f"; it also needs {cure}" for cure in self._missing)
        return f"Could not {purpose} for {self._recipe.name}: {what}; {cure}{also} (the whole log: {self._log})."


def _is_there(tool: Tool) -> bool:
    try:
        done = subprocess.run(tool.command, capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return re.search(tool.expects, done.stdout + done.stderr) is not None


def _clean_environment() -> dict[str, str]:
    """Without what leads a Python or an installer to the packages of another one."""
    leading = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "CONDA_PREFIX", "UV_PROJECT_ENVIRONMENT")
    return {key: value for key, value in os.environ.items() if key not in leading}


def _python_in(build: Path) -> Path:
    return build / "bin" / "python"


def _plain(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON gives it back."""
    return json.loads(json.dumps(asdict(recipe)))


def _built(folder: Path) -> _Built | None:
    try:
        said = json.loads((folder / "built.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return _Built(said["build"], said["recipe"], _python_in(folder / said["build"]))


def _write(path: Path, value: dict[str, Any]) -> None:
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(value, indent=2), encoding="utf-8")
    unfinished.replace(path)


def _builds(folder: Path) -> list[Path]:
    return [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]


def _next_build(folder: Path) -> str:
    return str(max((int(entry.name) for entry in _builds(folder)), default=0) + 1)


def _remove_builds(folder: Path, *, keep: str | None) -> None:
    for entry in _builds(folder):
        if entry.name != keep:
            shutil.rmtree(entry)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Refuse a second process that builds the same interpreter; a killed one leaves no lock behind."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise ReverieError(
            f"{folder} cannot be written ({error.strerror}): point REVERIE_HOME at a folder of yours."
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ReverieError(f"{folder.name} is being built by another process: wait until it is done.") from error
        yield
