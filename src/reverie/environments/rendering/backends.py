"""The ways in which MuJoCo can draw without a screen, and whether each of them does so on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_HERE = Path(__file__).parent
_TIMEOUT_SECONDS = 60.0
VENDOR_FOLDERS = (Path("/etc/glvnd/egl_vendor.d"), Path("/usr/share/glvnd/egl_vendor.d"))
"""Where the EGL of each driver is registered."""
_VENDOR = "__EGL_VENDOR_LIBRARY_FILENAMES"
_LIBRARY_IS_MISSING = "'NoneType' object has no attribute"
"""How PyOpenGL says so."""
_SOFTWARE_NAMES = ("llvmpipe", "softpipe", "swrast", "software")


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """One way to draw, which is chosen by environment variables that the simulator's process must have."""

    name: str
    variables: tuple[tuple[str, str], ...] = ()
    is_on_gpu: bool = False
    """Promises a GPU: where software draws instead, it does not count as working."""


def backends() -> list[Backend]:
    """Those worth trying here, best first. A user who sets MUJOCO_GL has chosen already."""
    chosen = os.environ.get("MUJOCO_GL")
    if chosen is not None:
        return [Backend(name=f"{chosen} (chosen by MUJOCO_GL)", variables=(("MUJOCO_GL", chosen),))]
    if sys.platform != "linux":
        return [Backend(name="the OpenGL of the system")]
    osmesa = Backend(name="OSMesa", variables=_platform("osmesa"))
    return [*_egl_backends(), osmesa]


def has_nvidia() -> bool:
    """Whether a driver of NVIDIA runs here."""
    return Path("/dev/nvidiactl").exists()


@cache
def problem_of(backend: Backend) -> str | None:
    """Why the backend cannot draw a frame here; None when it can. Asks a child process, once per process."""
    # Read here and not by the child: a probe that cannot be started says nothing about the backend, and must raise.
    probe = (_HERE / "probe.py").read_text(encoding="utf-8")
    try:
        child = subprocess.run(
            # -P: what lies in the working directory must not hide the packages whose names it bears.
            [sys.executable, "-P", "-c", probe],
            env={**os.environ, **dict(backend.variables)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no frame within {_TIMEOUT_SECONDS:.0f} seconds"
    if child.returncode != 0:
        return _reason(child.returncode, child.stderr)
    renderer = child.stdout.strip()
    if backend.is_on_gpu and any(name in renderer.lower() for name in _SOFTWARE_NAMES):
        return f"drawn by software ({renderer})"
    return None


def _egl_backends() -> list[Backend]:
    egl = _platform("egl")
    if _VENDOR in os.environ:
        return [Backend(name=f"EGL (chosen by {_VENDOR})", variables=egl)]
    nvidia = _registered("nvidia") or _HERE / "nvidia_egl_vendor.json"  # containers often lack the driver's own file
    mesa = _registered("mesa")
    mesa_egl = egl if mesa is None else (*egl, (_VENDOR, str(mesa)))
    found: list[Backend] = []
    if has_nvidia():
        variables = (*egl, (_VENDOR, str(nvidia)))
        found.append(Backend(name="EGL on the GPU (NVIDIA)", variables=variables, is_on_gpu=True))
    if any(Path("/dev/dri").glob("renderD*")):
        found.append(Backend(name="EGL on the GPU (Mesa)", variables=mesa_egl, is_on_gpu=True))
    software = (*mesa_egl, ("LIBGL_ALWAYS_SOFTWARE", "1"))
    return [*found, Backend(name="software EGL (Mesa)", variables=software)]


def _platform(name: str) -> tuple[tuple[str, str], ...]:
    """MuJoCo and PyOpenGL choose on their own, and MuJoCo refuses to work when they differ."""
    return (("MUJOCO_GL", name), ("PYOPENGL_PLATFORM", name))


def _registered(vendor: str) -> Path | None:
    found = [path for folder in VENDOR_FOLDERS for path in sorted(folder.glob(f"*{vendor}*.json"))]
    return found[0] if found else None


def _reason(code: int, errors: str) -> str:
    """The line with which a child ended; MuJoCo's destructors may write tracebacks of their own after it."""
    lines = [line.strip() for line in errors.partition("Exception ignored in")[0].splitlines() if line.strip()]
    if code < 0 or not lines:
        return f"the test ended with code {code}"
    return "its library is missing or cannot be loaded" if _LIBRARY_IS_MISSING in lines[-1] else lines[-1][:200]
