"""Headless drawing: a backend is found before the first import of MuJoCo, which reads it once and for good."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from reverie.environments.base import simulator_package
from reverie.environments.rendering.backends import VENDOR_FOLDERS, Backend, backends, has_nvidia, problem_of
from reverie.types import ReverieError

_WORDS = "REVERIE_RENDERING"
"""Names the backend that was set, for the worker processes that inherit it."""
_MEMORY = "REVERIE_RENDERING_MEMORY"
"""The file that remembers the backend; a worker, whose variables differ, could not find it."""
_INPUTS = (
    "MUJOCO_GL",
    "PYOPENGL_PLATFORM",
    "MUJOCO_EGL_DEVICE_ID",
    "__EGL_VENDOR_LIBRARY_FILENAMES",
    "__EGL_VENDOR_LIBRARY_DIRS",
    "LIBGL_ALWAYS_SOFTWARE",
    "LD_LIBRARY_PATH",
)
_OFF = ("disabled", "off")
_SOFTWARE = "apt install libosmesa6 (or apt install libegl1 libopengl0 libegl-mesa0 libgl1-mesa-dri)"
_HARDWARE = "apt install libegl1 libopengl0 for the GPU (or apt install libosmesa6 for software)"


def rendering_backend() -> str:
    """Find a backend that draws, set it for this process and its children, and name it.

    The first call of a machine tries the backends in child processes and writes the result to the user's cache; later
    starts read it there, as long as nothing has changed that the choice depends on.
    """
    inherited = os.environ.get(_WORDS)
    if inherited is not None and _MEMORY in os.environ:
        return inherited
    memory = _memory_file()
    backend = _remembered(memory)
    if backend is None:
        backend = _first_that_draws()
        _remember(memory, backend)
    os.environ.update(backend.variables)
    os.environ[_WORDS], os.environ[_MEMORY] = backend.name, str(memory)
    return backend.name


def tried_backends() -> dict[str, str | None]:
    """Every backend that could work here, tried now, with its problem; None where it drew a frame."""
    if _WORDS in os.environ:
        raise RuntimeError("a backend is set already, which hides the others")
    _require_mujoco()
    problems = {backend: problem_of(backend) for backend in backends()}
    working = [backend for backend, problem in problems.items() if problem is None]
    memory = _memory_file()
    if working:
        _remember(memory, working[0])
    else:
        _forget(memory)
    return {backend.name: problem for backend, problem in problems.items()}


def drawing_package(module: str, *, task: str, extra: str) -> ModuleType:
    """The imported ``module`` of a simulator that draws, with a backend that works."""
    if importlib.util.find_spec(module.partition(".")[0]) is None:
        return simulator_package(module, task=task, extra=extra)  # for its sentence
    rendering_backend()
    if "torch" in sys.modules:
        # Mesa draws with LLVM and torch compiles with triton's copy of it: loaded in the other order they crash.
        with suppress(ImportError):
            importlib.import_module("triton")
    with first_drawing(task):
        try:
            _load_again_for_backend()
            return importlib.import_module(module)
        except ModuleNotFoundError:
            return simulator_package(module, task=task, extra=extra)  # for its sentence


def blind_package(module: str, *, task: str, extra: str) -> ModuleType:
    """The imported ``module`` of a simulator that will not draw: works where there is no OpenGL at all."""
    set_before = os.environ.get("MUJOCO_GL")
    os.environ["MUJOCO_GL"] = "disabled"  # otherwise the import itself opens OpenGL, and fails without it
    try:
        return simulator_package(module, task=task, extra=extra)
    finally:
        del os.environ["MUJOCO_GL"]
        if set_before is not None:
            os.environ["MUJOCO_GL"] = set_before


@contextmanager
def first_drawing(task: str) -> Iterator[None]:
    """Around the first frame of a simulator: where it fails, the backends are tried anew at the next start.

    Must follow a call of `rendering_backend`.
    """
    try:
        yield
    except ReverieError:
        raise
    except Exception as error:  # OpenGL fails in many ways: ImportError, AttributeError, its own errors
        backend = os.environ[_WORDS]
        _forget(Path(os.environ[_MEMORY]))
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise ReverieError(
            f"{task} cannot draw with {backend}, which worked when it was last tried ({why}): "
            "run the command again, and a backend will be looked for anew."
        ) from error


def _require_mujoco() -> None:
    if importlib.util.find_spec("mujoco") is None:
        raise ReverieError("Drawing needs MuJoCo, which is not installed: run pip install 'reverie[dmc]'.")


def _first_that_draws() -> Backend:
    _require_mujoco()
    problems: list[str] = []
    for backend in backends():
        problem = problem_of(backend)
        if problem is None:
            return backend
        problems.append(f"{backend.name}: {problem}")
    why = "; ".join(problems)
    if "MUJOCO_GL" in os.environ:
        raise ReverieError(f"MuJoCo cannot draw here ({why}): unset MUJOCO_GL to have a backend looked for.")
    packages = _HARDWARE if has_nvidia() else _SOFTWARE
    raise ReverieError(f"MuJoCo cannot draw here, no OpenGL backend works ({why}): run {packages}.")


def _load_again_for_backend() -> None:
    """Those who read MUJOCO_GL at import may have been imported before it was set, or while it was off."""
    chosen = os.environ.get("MUJOCO_GL")
    for name, attribute in (("mujoco.gl_context", "_MUJOCO_GL"), ("dm_control._render", "BACKEND")):
        loaded = sys.modules.get(name)
        if loaded is None:
            continue
        current = getattr(loaded, attribute)
        if current in _OFF or (chosen is not None and current != chosen):
            importlib.reload(loaded)


def _memory_file() -> Path:
    """One file for each machine and each state of it that can change which backend works."""
    cache_folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(json.dumps(_circumstances()).encode()).hexdigest()[:16]
    return cache_folder / "reverie" / f"rendering-{key}.json"


def _circumstances() -> list[str]:
    files = [path for folder in VENDOR_FOLDERS for path in sorted(folder.glob("*"))]
    devices = [*Path("/dev").glob("nvidia*"), *Path("/dev/dri").glob("*")]
    driver = Path("/proc/driver/nvidia/version")
    return [
        platform.node(),
        sys.executable,
        *(f"{name} {_version(name)}" for name in ("mujoco", "PyOpenGL")),
        *(f"{name}={os.environ.get(name)}" for name in _INPUTS),
        *(f"{path} {path.stat().st_mtime_ns}" for path in [*files, Path("/etc/ld.so.cache")] if path.exists()),
        *sorted(map(str, devices)),
        driver.read_text() if driver.exists() else "",
    ]


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing"


def _remembered(memory: Path) -> Backend | None:
    try:
        kept = json.loads(memory.read_text())
        variables = tuple((str(name), str(value)) for name, value in kept["variables"])
        return Backend(name=kept["name"], variables=variables, is_on_gpu=kept["is_on_gpu"])
    except (OSError, ValueError, KeyError, TypeError):
        return None  # nothing there, or nothing that can be read: both mean to try the backends


def _remember(memory: Path, backend: Backend) -> None:
    with suppress(OSError):  # a home that cannot be written costs the next start a second, no more
        memory.parent.mkdir(parents=True, exist_ok=True)
        new = memory.with_name(f"{memory.name}.{os.getpid()}")
        new.write_text(json.dumps(asdict(backend)))
        new.replace(memory)


def _forget(memory: Path) -> None:
    with suppress(OSError):  # a home that cannot be written remembers nothing
        memory.unlink(missing_ok=True)
