"""System libraries that some simulators need and no Python package brings."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys

from reverie.types import ReverieError

_PACKAGES = {
    "libEGL.so.1": "libegl1",
    "libEGL_mesa.so.0": "libgl1-mesa-dri",
    "libOpenGL.so.0": "libopengl0",
    "libQt5Gui.so.5": "libqt5gui5",
}
"""By the library: the package of Debian and Ubuntu that brings it. EGL draws for MuJoCo, Qt for envpool's Procgen."""


def missing_packages() -> list[str]:
    """What to install so that every suite can run; empty where nothing is missing or the system is no Linux."""
    if sys.platform != "linux":
        return []
    return [package for library, package in _PACKAGES.items() if not _is_found(library)]


def install_packages() -> None:
    """Install what is missing where that can be done without asking (root on Debian or Ubuntu); else say how."""
    packages = missing_packages()
    if not packages:
        return
    command = ["apt-get", "install", "-y", "-qq", *packages]
    print(f"reverie: the suites need system libraries: {' '.join(command)}", file=sys.stderr, flush=True)
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        raise ReverieError(f"the tests of every suite need {', '.join(packages)}: install them as root and try again")
    for step in (["apt-get", "update", "-qq"], command):
        if subprocess.run(step, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            raise ReverieError(f"`{' '.join(step)}` failed: mend what it says above and try again")


def _is_found(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True
