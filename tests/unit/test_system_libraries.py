"""The system libraries of the simulators: which are missing, and who installs them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.commands.system_libraries import missing_packages

LIBRARIES = {
    "libEGL.so.1": "libegl1",
    "libEGL_mesa.so.0": "libegl-mesa0",
    "libOpenGL.so.0": "libopengl0",
    "libQt5Gui.so.5": "libqt5gui5",
}
INSTALL = "from reverie.commands.system_libraries import install_packages; install_packages()"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the libraries of other systems come with them")


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """The only folder in which programs are found."""
    folder = tmp_path / "programs"
    folder.mkdir()
    return folder


def in_child(*arguments: str, broken: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """Python where every library is found in the folder ``broken`` first, and cannot be loaded."""
    broken.mkdir()
    for library in LIBRARIES:
        (broken / library).write_text("not a library")
    variables = {"PYTHONPATH": os.pathsep.join(sys.path), "LD_LIBRARY_PATH": str(broken), "PATH": str(programs)}
    return subprocess.run(
        [sys.executable, *arguments], env={**os.environ, **variables}, capture_output=True, text=True, check=False
    )


def test_without_apt_the_packages_are_named_and_the_way_around_them(tmp_path: Path, programs: Path) -> None:
    done = in_child("-m", "reverie", "test", broken=tmp_path / "broken", programs=programs)
    assert done.returncode == 2
    sentence = done.stderr.splitlines()[-1]
    assert f"need {', '.join(LIBRARIES.values())}" in sentence
    assert "install them as root" in sentence
    assert "`--as-it-is`" in sentence


@pytest.mark.skipif(os.geteuid() != 0, reason="only root installs packages")
@pytest.mark.parametrize("code", [0, 3])
def test_root_installs_them(tmp_path: Path, programs: Path, code: int) -> None:
    apt, log = programs / "apt-get", tmp_path / "log"
    apt.write_text(f'#!/bin/sh\necho "$@" >> {log}\nexit {code}\n')
    apt.chmod(0o755)
    done = in_child("-c", INSTALL, broken=tmp_path / "broken", programs=programs)
    asked = log.read_text().splitlines()
    assert asked[0] == "update -qq"
    if code == 0:
        assert done.returncode == 0, done.stderr
        assert asked[1].startswith(f"install -y -qq {' '.join(LIBRARIES.values())}")
    else:
        assert "`apt-get update -qq` failed" in done.stderr
        assert len(asked) == 1


@pytest.mark.parametrize("file", ["x86_64-linux-gnu/dri/swrast_dri.so", "dri/swrast_dri.so", "a/libgallium-25.0.7.so"])
def test_the_driver_of_mesa_is_a_package_of_its_own(tmp_path: Path, file: str) -> None:
    assert missing_packages([tmp_path])[-1] == "libgl1-mesa-dri"
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    assert "libgl1-mesa-dri" not in missing_packages([tmp_path])
