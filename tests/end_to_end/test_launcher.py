"""The launcher on a bare machine: real shell, real Python, real .venv; a stand-in for uv saves the downloads."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

import pytest

Finished = subprocess.CompletedProcess[str]

TOOLS = ("cat", "dirname", "mv", "readlink", "rm", "sh", "sleep")

ECHO_CLI = """
import json, os, sys
def main():
    command = os.environ["REVERIE_COMMAND"]
    print(json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd(), "prefix": sys.prefix, "command": command}))
    return 0
"""

UV = """#!/bin/sh
echo "$*" >>"$BENCH/uv.log"
while [ -e "$BENCH/uv-blocks" ]; do sleep 0.05; done
[ ! -e "$BENCH/uv-fails" ] || exit 1
case "$*" in
*--editable*) for site in .venv/lib/python*/site-packages; do echo "$PWD/src" >"$site/reverie.pth"; done ;;
esac
"""


class Bench:
    """A checkout with the real launcher and an echoing command line, on a machine with Python, uv and little else."""

    def __init__(self, folder: Path, repo_root: Path) -> None:
        self.folder = folder
        self.root = folder / "check out"
        self.bin = folder / "bin"
        package = self.root / "src" / "reverie"
        package.mkdir(parents=True)
        self.bin.mkdir()
        for name in ("reverie", "requirements.lock", "pyproject.toml"):
            shutil.copy(repo_root / name, self.root / name)
        for name in (".ci", "scripts"):
            shutil.copytree(repo_root / name, self.root / name)
        shutil.copy(repo_root / "src/reverie/__main__.py", package)
        (package / "__init__.py").touch()
        (package / "cli.py").write_text(ECHO_CLI)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool) or tool)
        (self.bin / "python3").symlink_to(Path(sys.executable).resolve())
        self.script("uv", UV)

    @property
    def stamp(self) -> Path:
        return self.root / ".venv" / "made-from"

    def script(self, name: str, text: str) -> None:
        (self.bin / name).unlink(missing_ok=True)
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def begin(self, *command: str | Path, cwd: Path | None = None, python_path: str = "") -> subprocess.Popen[str]:
        environment = {"PATH": self.bin, "HOME": self.folder, "BENCH": self.folder, "PYTHONPATH": python_path}
        return subprocess.Popen(
            [str(part) for part in command or (self.root / "reverie",)],
            cwd=cwd or self.folder,
            env={name: str(value) for name, value in environment.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, *command: str | Path, cwd: Path | None = None, python_path: str = "") -> Finished:
        process = self.begin(*command, cwd=cwd, python_path=python_path)
        stdout, stderr = process.communicate(timeout=120)
        return Finished(process.args, process.returncode, stdout, stderr)

    def installs(self) -> list[str]:
        log = self.folder / "uv.log"
        return log.read_text().splitlines() if log.exists() else []

    def wait_for_install(self) -> None:
        deadline = time.monotonic() + 60
        while not self.installs():
            assert time.monotonic() < deadline, "uv was never called"
            time.sleep(0.02)


@pytest.fixture
def bench(tmp_path: Path, repo_root: Path) -> Bench:
    return Bench(tmp_path, repo_root)


@pytest.fixture
def prepared(bench: Bench) -> Bench:
    """A bench whose .venv is complete, with a mark inside by which a rebuild can be told from an update."""
    assert bench.run().returncode == 0
    (bench.folder / "uv.log").unlink()
    (bench.root / ".venv" / "mark").touch()
    return bench


def test_first_start_prepares_then_runs_the_command(bench: Bench) -> None:
    done = bench.run(bench.root / "reverie", "train", "a b", "x='$1'", "")
    assert done.returncode == 0, done.stderr
    argv = ["train", "a b", "x='$1'", ""]
    seen = json.loads(done.stdout)
    assert (seen["argv"], seen["cwd"], seen["prefix"]) == (argv, str(bench.folder), str(bench.root / ".venv"))
    assert done.stderr.splitlines() == ["reverie: Preparing .venv (once, about a minute) ..."]
    lock_install, own_install = bench.installs()
    assert "--compile-bytecode --requirement requirements.lock" in lock_install
    assert "--no-deps --no-build-isolation --editable ." in own_install


def test_second_start_installs_and_says_nothing(prepared: Bench) -> None:
    prepared.script("python3", "#!/bin/sh\nexit 1\n")  # the fast path needs no other Python
    done = prepared.run()
    assert (done.returncode, done.stderr, prepared.installs()) == (0, "", [])
    assert (prepared.root / ".venv" / "mark").exists()


@pytest.mark.parametrize("way", ["'../check out/reverie'", "./link", "../second", "sh '../check out/reverie'"])
def test_runs_from_another_directory_and_stays_there(prepared: Bench, way: str) -> None:
    elsewhere = prepared.folder / "else where"
    elsewhere.mkdir()
    (elsewhere / "types.py").write_text("raise SystemExit('a module of the working directory was imported')")
    (elsewhere / "link").symlink_to(prepared.root / "reverie")
    (prepared.folder / "second").symlink_to("else where/link")
    # A relative command is looked up from the child's working directory, so a shell has to start it.
    done = prepared.run("sh", "-c", way, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cwd"] == str(elsewhere)
    assert prepared.installs() == []


@pytest.mark.parametrize(("way", "command"), [("./reverie", "./reverie"), ("sh reverie", "./reverie")])
def test_the_command_is_known_as_it_was_called(prepared: Bench, way: str, command: str) -> None:
    seen = json.loads(prepared.run("sh", "-c", way, cwd=prepared.root).stdout)
    assert seen["command"] == command
    seen = json.loads(prepared.run(prepared.root / "reverie").stdout)
    assert seen["command"] == str(prepared.root / "reverie")


def test_ci_runs_the_tests_in_the_checkout(prepared: Bench) -> None:
    (prepared.bin / "bash").symlink_to(shutil.which("bash") or "bash")
    (prepared.bin / "env").symlink_to(shutil.which("env") or "env")
    seen = json.loads(prepared.run(prepared.root / ".ci" / "run").stdout)
    assert (seen["argv"], seen["cwd"]) == (["test"], str(prepared.root))


def test_train_script_without_packages_hands_over_to_the_launcher(prepared: Bench) -> None:
    # -S: a Python that sees no installed package.
    done = prepared.run(prepared.bin / "python3", "-S", prepared.root / "scripts/train.py", "+experiment=some one")
    assert json.loads(done.stdout)["argv"] == ["train", "+experiment=some one"]


def _damage(bench: Bench, kind: str) -> None:
    venv = bench.root / ".venv"
    if kind == "interrupted":
        bench.stamp.unlink()
    elif kind == "python_removed":
        (venv / "bin/python").unlink()
        (venv / "bin/python").symlink_to("/nowhere/python3.11")
    elif kind == "checkout_moved":
        bench.root = bench.root.rename(bench.folder / "moved")
    elif kind == "empty":
        shutil.rmtree(venv)
        venv.mkdir()


@pytest.mark.parametrize("kind", ["interrupted", "python_removed", "checkout_moved", "empty"])
def test_half_built_or_broken_venv_is_rebuilt(prepared: Bench, kind: str) -> None:
    _damage(prepared, kind)
    done = prepared.run()
    assert done.returncode == 0, done.stderr
    assert len(prepared.installs()) == 2
    assert not (prepared.root / ".venv" / "mark").exists()
    assert json.loads(done.stdout)["prefix"] == str(prepared.root / ".venv")


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml"])
def test_changed_lock_or_project_updates_in_place(prepared: Bench, name: str) -> None:
    with (prepared.root / name).open("a") as file:
        file.write("# changed\n")
    assert prepared.run().stderr.splitlines() == ["reverie: Updating .venv ..."]
    assert len(prepared.installs()) == 2
    assert (prepared.root / ".venv" / "mark").exists()
    assert prepared.run().stderr == ""


@pytest.mark.parametrize("is_update", [False, True])
def test_failing_install_leaves_no_stamp(bench: Bench, is_update: bool) -> None:
    if is_update:
        bench.run()
        (bench.root / "requirements.lock").write_text("other==1\n")
    (bench.folder / "uv-fails").touch()
    failed = bench.run()
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "could not be installed; check network and disk" in failed.stderr.splitlines()[-1]
    assert not bench.stamp.exists()
    (bench.folder / "uv-fails").unlink()
    assert bench.run().returncode == 0


def test_no_suitable_python_is_one_sentence(bench: Bench) -> None:
    bench.script("python3", "#!/bin/sh\necho 'shim: version not installed' >&2\nexit 127\n")
    bench.script("python", "#!/bin/sh\nexit 1\n")  # what a Python of another version answers to the probe
    done = bench.run()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "reverie: no Python 3.11, 3.12 or 3.13 was found on PATH; install one and start again.\n"
    assert not (bench.root / ".venv").exists()


def test_working_python_behind_a_failing_shim_is_found(bench: Bench) -> None:
    (bench.bin / "python3").rename(bench.bin / "python3.12")
    bench.script("python3", "#!/bin/sh\nexit 127\n")
    assert bench.run().returncode == 0


def test_python_without_venv_names_the_package_to_install(bench: Bench) -> None:
    (bench.bin / "uv").unlink()
    (bench.folder / "ensurepip.py").write_text("raise ImportError")
    done = bench.run(python_path=str(bench.folder))
    assert done.returncode == 2
    assert "apt install python3-venv" in done.stderr.splitlines()[-1]
    assert not bench.stamp.exists()


def test_concurrent_first_starts_install_once(bench: Bench) -> None:
    (bench.folder / "uv-blocks").touch()
    first = bench.begin()
    bench.wait_for_install()
    second = bench.begin()
    assert second.stderr is not None
    assert second.stderr.readline() == "reverie: another start is preparing .venv; waiting for it ...\n"
    (bench.folder / "uv-blocks").unlink()
    for process in (first, second):
        stdout, stderr = process.communicate(timeout=60)
        assert process.returncode == 0, stderr
        assert json.loads(stdout)["prefix"] == str(bench.root / ".venv")
    assert len(bench.installs()) == 2


def test_killed_first_start_leaves_nothing_that_blocks_the_next(bench: Bench) -> None:
    (bench.folder / "uv-blocks").touch()
    first = bench.begin()
    bench.wait_for_install()
    os.killpg(first.pid, signal.SIGKILL)
    first.communicate(timeout=60)
    (bench.folder / "uv-blocks").unlink()
    done = bench.run()
    assert (done.returncode, "waiting" in done.stderr) == (0, False)
    assert len(bench.installs()) == 3


def test_lock_holds_exact_pins_for_every_declared_package(repo_root: Path) -> None:
    lines = (repo_root / "requirements.lock").read_text().splitlines()
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.]+( ; [^@]+)?", line)] == []
    project = tomllib.loads((repo_root / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["wandb"], *extras["dev"]]
    assert {re.split("[<>=]", need)[0] for need in wanted} <= {line.split("==")[0] for line in lines}


def test_wheel_carries_every_config_and_the_command(repo_root: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=repo_root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
        entries = next(archive.read(name).decode() for name in packed if name.endswith("entry_points.txt"))
    configs = {str(path.relative_to(repo_root / "src")) for path in (repo_root / "src/reverie/configs").rglob("*.yaml")}
    assert configs
    assert configs <= packed
    assert "reverie = reverie.cli:main" in entries


def test_script_and_module_are_the_same_entry(repo_root: Path, tmp_path: Path) -> None:
    def text(*command: str) -> str:
        return subprocess.check_output([sys.executable, *command], cwd=tmp_path, text=True)

    assert text(str(repo_root / "scripts/train.py"), "--help") == text("-m", "reverie", "train", "--help") != ""


@pytest.mark.long
def test_bare_checkout_starts_with_real_downloads(repo_root: Path, tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    unwanted = shutil.ignore_patterns(".git", ".venv", "runs", "__pycache__", ".*_cache")
    shutil.copytree(repo_root, root, ignore=unwanted)
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    command = [str(root / "reverie"), "--help"]
    try:
        for preparations in (1, 0):
            done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            assert "train" in done.stdout
            assert done.stderr.count("Preparing .venv") == preparations
    finally:
        shutil.rmtree(root)
