"""Headless drawing, each case in a fresh process: MuJoCo chooses its backend once, at import."""

from __future__ import annotations

import ctypes.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = ("libEGL.so", "libOSMesa.so", "libOpenGL.so", "libGL.so")
NAME = "from reverie.environments.rendering.choice import rendering_backend; print(rendering_backend())"
FRAME = """
from reverie.environments.dmc import DmcEnvironment
env = DmcEnvironment(task="dmc_cartpole_balance", observation="vision")
print(len(set(env.reset(1).obs["image"].ravel().tolist())))
env.close()
"""
VARIABLES = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "__EGL_VENDOR_LIBRARY_FILENAMES", "LIBGL_ALWAYS_SOFTWARE")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def no_opengl(tmp_path: Path) -> str:
    """A library path on which every OpenGL library is found and none can be loaded."""
    folder = tmp_path / "broken"
    folder.mkdir()
    for name in LIBRARIES:
        for ending in ("", ".0", ".1", ".6", ".8"):
            (folder / f"{name}{ending}").write_text("not a library")
    return str(folder)


def child(code: str, cache: Path, **variables: str) -> str:
    """What the code prints last in a process of its own, or the message of the ReverieError it ends with."""
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES and "REVERIE_" not in name}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(cache), **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if result.returncode == 0:
        return result.stdout.strip().splitlines()[-1]
    _, found, message = result.stderr.partition("reverie.types.ReverieError: ")
    assert found, result.stderr
    return message.strip()


def memory_file(cache: Path) -> Path:
    (only,) = (cache / "reverie").iterdir()
    return only


def test_a_backend_is_found_that_draws_and_children_inherit_it(cache: Path) -> None:
    code = f"""
import os, subprocess, sys
from reverie.environments.rendering.choice import rendering_backend
assert "torch" not in sys.modules and "mujoco" not in sys.modules
mine = rendering_backend()
theirs = subprocess.run([sys.executable, "-c", {NAME!r}], capture_output=True, text=True, check=True).stdout.strip()
assert mine == theirs and os.environ["MUJOCO_GL"] == os.environ["PYOPENGL_PLATFORM"], (mine, theirs)
{FRAME}"""
    assert int(child(code, cache)) > 10


def test_a_later_start_reads_the_choice_while_nothing_has_changed(cache: Path) -> None:
    first = child(NAME, cache)
    memory = memory_file(cache)
    kept = json.loads(memory.read_text())
    assert kept["name"] == first
    memory.write_text(json.dumps(kept | {"name": "read from the file"}))
    assert child(NAME, cache) == "read from the file"
    assert child(NAME, cache, MUJOCO_EGL_DEVICE_ID="0") == first
    memory.write_text("{")
    assert child(NAME, cache) == first


def test_a_remembered_backend_that_fails_is_looked_for_anew(cache: Path) -> None:
    first = child(NAME, cache)
    memory = memory_file(cache)
    broken = [["MUJOCO_GL", "egl"], ["PYOPENGL_PLATFORM", "egl"], ["__EGL_VENDOR_LIBRARY_FILENAMES", "/none.json"]]
    memory.write_text(json.dumps({"name": "gone", "variables": broken, "is_on_gpu": False}))
    message = child(FRAME, cache)
    assert message.startswith("dmc_cartpole_balance cannot draw with gone, which worked when it was last tried")
    assert message.count(". ") == 0
    assert int(child(FRAME, cache)) > 10
    assert json.loads(memory.read_text())["name"] == first


def test_the_choice_of_the_user_counts(cache: Path) -> None:
    assert child(NAME, cache, MUJOCO_GL="egl") == "egl (chosen by MUJOCO_GL)"
    message = child(NAME, cache, MUJOCO_GL="disabled")
    assert message.startswith("MuJoCo cannot draw here (disabled (chosen by MUJOCO_GL)")
    assert message.endswith("unset MUJOCO_GL to have a backend looked for.")


def test_osmesa_is_taken_where_egl_fails(cache: Path) -> None:
    said = child(NAME, cache, __EGL_VENDOR_LIBRARY_FILENAMES="/none.json")
    if ctypes.util.find_library("OSMesa"):
        assert said == "OSMesa"
        assert int(child(FRAME, cache, __EGL_VENDOR_LIBRARY_FILENAMES="/none.json")) > 10
    else:
        assert "apt install libosmesa6" in said


def test_where_nothing_draws_the_packages_are_named(cache: Path, no_opengl: str) -> None:
    message = child(FRAME, cache, LD_LIBRARY_PATH=no_opengl)
    assert message.startswith("MuJoCo cannot draw here, no OpenGL backend works (")
    assert "software EGL (Mesa): " in message
    assert "; OSMesa: " in message
    assert "apt install libosmesa6" in message
    assert "apt install libegl1 libopengl0" in message
    assert message.endswith(".")
    assert not cache.exists()


def test_every_backend_is_tried_for_the_doctor(cache: Path, no_opengl: str) -> None:
    code = (
        "import json; from reverie.environments.rendering.choice import tried_backends as tried; "
        "print(json.dumps(tried()))"
    )
    tried = json.loads(child(code, cache))
    assert list(tried)[-2:] == ["software EGL (Mesa)", "OSMesa"]
    assert json.loads(memory_file(cache).read_text())["name"] == next(name for name in tried if tried[name] is None)
    nothing = json.loads(child(code, cache, LD_LIBRARY_PATH=no_opengl))
    assert nothing.keys() == tried.keys()
    assert all(nothing.values())


def test_what_is_not_drawn_needs_no_opengl(cache: Path, no_opengl: str) -> None:
    code = """
from reverie.environments.dmc import DmcEnvironment
from reverie.environments.metaworld import MetaworldEnvironment
for env in (DmcEnvironment(task="dmc_cartpole_balance"), MetaworldEnvironment(task="metaworld_reach-v3")):
    env.reset(1)
    print(*env.spaces.obs)
    env.close()
"""
    assert child(code, cache, LD_LIBRARY_PATH=no_opengl) == "vector"
    assert not cache.exists()


def test_drawing_may_follow_what_is_not_drawn_in_the_same_process(cache: Path) -> None:
    code = """
from reverie.environments.metaworld import MetaworldEnvironment
from reverie.environments.dmc import DmcEnvironment
DmcEnvironment(task="dmc_cartpole_balance").close()
MetaworldEnvironment(task="metaworld_reach-v3").close()
env = MetaworldEnvironment(task="metaworld_reach-v3", observation="vision")
assert len(set(env.reset(1).obs["image"].ravel().tolist())) > 10
env.close()
"""
    assert int(child(code + FRAME, cache)) > 10
