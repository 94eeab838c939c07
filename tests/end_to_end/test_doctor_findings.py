"""The single findings of `reverie doctor`: drawing, memory and room on the disk."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.commands import doctor
from reverie.runtime.machine_memory import Memory, machine_memory


def test_doctor_tries_the_backends_and_believes_no_cache(tmp_path: Path) -> None:
    made_up = {"name": "a painter", "variables": [["MUJOCO_GL", "egl"]], "is_on_gpu": False}
    remember = "from reverie.environments.rendering import choice; print(choice.rendering_backend())"
    show = "from reverie.commands import doctor; found = doctor.rendering(); print(found.verdict, found.text)"
    real = said_by_child(remember, tmp_path)
    (memory,) = (tmp_path / "reverie").iterdir()
    memory.write_text(json.dumps(made_up))
    assert said_by_child(remember, tmp_path) == "a painter"
    said = said_by_child(show, tmp_path)
    assert "a painter" not in said
    assert said.startswith(f"ok {real}")
    for name, variable in (("egl", "/none.json"), ("disabled", "")):
        variables = {"MUJOCO_GL": name, "__EGL_VENDOR_LIBRARY_FILENAMES": variable}
        said = said_by_child(show, tmp_path, **variables)
        assert said.startswith("-- ")
        assert f"{name} (chosen by MUJOCO_GL): " in said


def test_doctor_says_why_the_other_backends_do_not_draw(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    for ending in ("", ".0", ".6", ".8"):  # found first, and not to be loaded
        (broken / f"libOSMesa.so{ending}").write_text("not a library")
    show = "from reverie.commands import doctor; found = doctor.rendering(); print(found.verdict, found.text)"
    said = said_by_child(show, tmp_path, LD_LIBRARY_PATH=str(broken))
    assert said.startswith("ok ")
    assert "; not OSMesa: its library is missing or cannot be loaded" in said


def said_by_child(code: str, cache: Path, **variables: str) -> str:
    """What the code prints in a process of its own, in which nobody has chosen a backend yet."""
    chosen = ("MUJOCO_GL", "PYOPENGL_PLATFORM", "__EGL_VENDOR_LIBRARY_FILENAMES", "LIBGL_ALWAYS_SOFTWARE")
    clean = {name: value for name, value in os.environ.items() if name not in chosen and "REVERIE_" not in name}
    env = {**clean, "PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": str(cache), **variables}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_little_memory_is_in_the_way() -> None:
    little, enough = (Memory(total_bytes=2**34, available_bytes=size) for size in (2**30, 2**32))
    assert doctor.memory(enough) == doctor.Finding(name="memory", text="16.0 GiB, 4.0 GiB available")
    assert doctor.memory(little).verdict == "BAD"
    assert doctor.memory(little).text.startswith("16.0 GiB, 1.0 GiB available; a run needs 2 GiB: ")
    assert doctor.memory(Memory(total_bytes=2**30, available_bytes=None)).verdict == "BAD"
    assert "the limit of this container" in doctor.memory(Memory(total_bytes=1, available_bytes=1, is_limit=True)).text


def test_the_memory_of_this_machine_is_found() -> None:
    found = machine_memory()
    assert (
        0
        < (found.available_bytes or 1)
        <= found.total_bytes
        <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    )


@pytest.mark.parametrize(
    ("line", "group", "names"),
    [
        ("0::/a/b", "a", ("memory.max", "memory.current", "inactive_file")),
        ("0::/", ".", ("memory.max", "memory.current", "inactive_file")),
        ("4:memory:/a/b", "memory/a/b", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
        ("4:memory:/of/host", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")),
    ],
)
def test_the_limit_of_a_control_group_counts(tmp_path: Path, line: str, group: str, names: tuple[str, ...]) -> None:
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"1:cpu:/elsewhere\n{line}\n")
    assert machine_memory(tmp_path) == Memory(total_bytes=2**33, available_bytes=2**32)
    folder = tmp_path / "sys" / "fs" / "cgroup" / group
    folder.mkdir(parents=True)
    limit, used, cached = names
    (folder / used).write_text(f"{2**30}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{cached} {2**29}\n")
    for unlimited in ("max", str(2**63 - 4096)) if limit == "memory.max" else (str(2**63 - 4096),):
        (folder / limit).write_text(f"{unlimited}\n")
        assert machine_memory(tmp_path) == Memory(total_bytes=2**33, available_bytes=2**32)
    (folder / limit).write_text(f"{2**31}\n")
    expected = Memory(total_bytes=2**31, available_bytes=2**31 - 2**29, is_limit=True)
    assert machine_memory(tmp_path) == expected


def test_little_room_is_in_the_way() -> None:
    assert [doctor.disk(size).verdict for size in (2**29, 2**31)] == ["BAD", "ok"]
    assert [doctor.shared_memory(size).verdict for size in (2**20, 2**26)] == ["BAD", "ok"]
