"""A run folder comes into being in one step, belongs to one process, and says what made it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from reverie.orchestration import run_folder
from reverie.orchestration.run_folder import RunFolder, new_run_folder
from reverie.types import ReverieError, Space, Spaces

SPACES = Spaces(obs={"vector": Space(shape=(4,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=2))

HOLDER = """
import sys, time
from pathlib import Path
from reverie.orchestration.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).locked():
    print("held", flush=True)
    time.sleep(600)
"""


def test_new_folders_are_unique_under_concurrency(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: new_run_folder(tmp_path / "runs", "group/cartpole"), range(24)))
    assert len(set(folders)) == 24
    assert all(folder.is_dir() and folder.parent == tmp_path / "runs" for folder in folders)
    assert all(folder.name.startswith("group-cartpole-2") for folder in folders)


def test_a_folder_is_a_run_once_it_holds_its_config(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "deep" / "run")
    assert not folder.is_run
    with pytest.raises(ReverieError, match="is not a run folder"):
        folder.config_text()
    folder.create(config_text="seed: 3\n# ümlaut\n", spaces=SPACES)
    assert folder.is_run
    assert folder.config_text() == "seed: 3\n# ümlaut\n"
    info = folder.info()
    assert info["status"] == "running"
    assert info["spaces"]["action"]["classes"] == 2
    assert info["spaces"]["obs"]["vector"]["shape"] == [4]
    assert {"python", "torch", "gymnasium"} <= info["versions"].keys()
    assert info["hardware"]["cpu_cores"] == os.cpu_count()
    assert "commit" in info
    folder.set_status("finished")
    assert folder.info() == {**info, "status": "finished"}
    with pytest.raises(ReverieError, match="already holds a run"):
        folder.create(config_text="", spaces=SPACES)


def test_creation_cut_short_leaves_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = run_folder.replace_file

    def fail_at_config(path: Path, pieces: list[bytes]) -> object:
        if path.name == "config.yaml":
            raise OSError(28, "No space left on device")
        return original(path, pieces)

    monkeypatch.setattr(run_folder, "replace_file", fail_at_config)
    with pytest.raises(ReverieError, match=r"no space left on device.*Free space, or choose another logdir"):
        RunFolder(tmp_path).create(config_text="seed: 3", spaces=SPACES)
    assert (tmp_path / "run.json").is_file()
    assert not RunFolder(tmp_path).is_run


@pytest.mark.parametrize("content", [b"", b"[1]", b"{", b"\xff"])
def test_a_damaged_run_json_is_a_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ReverieError, match=r"run\.json.*restore the file"):
        RunFolder(tmp_path).info()


def test_a_second_process_is_refused_until_the_first_is_killed(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=environment
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        refusal = pytest.raises(ReverieError, match=rf"another process \(pid {holder.pid}\) is using the run")
        with refusal, RunFolder(tmp_path).locked():
            pytest.fail("two processes hold one run")
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with RunFolder(tmp_path).locked():
        assert (tmp_path / "lock").read_text() == f"pid {os.getpid()}\n"
    with RunFolder(tmp_path).locked():  # released at the end of the block, and free again
        pass


@pytest.mark.parametrize("path", ["file/run", "/proc/run"])
def test_a_place_that_cannot_be_written_is_a_sentence(path: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    place = tmp_path / path
    with pytest.raises(ReverieError, match=r"cannot write to the run folder .*choose another logdir"):
        new_run_folder(place, "cartpole")
    with (
        pytest.raises(ReverieError, match=r"cannot write to the run folder .*choose another logdir"),
        RunFolder(place).locked(),
    ):
        pytest.fail("locked what cannot be written")


def test_the_commit_is_that_of_the_source_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    monkeypatch.setattr(run_folder, "__file__", str(tmp_path / "src" / "reverie" / "orchestration" / "run_folder.py"))
    assert run_folder.source_commit() is None
    git("init")
    assert run_folder.source_commit() is None  # a repository without a commit
    (tmp_path / "code.py").write_text("1")
    git("add", "code.py")
    git("commit", "-m", "first")
    assert run_folder.source_commit() == git("rev-parse", "HEAD")
    (tmp_path / "code.py").write_text("2")
    assert run_folder.source_commit() == git("rev-parse", "HEAD") + "+changes"


def test_run_json_is_plain_json(tmp_path: Path) -> None:
    RunFolder(tmp_path).create(config_text="", spaces=SPACES)
    text = (tmp_path / "run.json").read_text()
    assert json.loads(text)["status"] == "running"
    assert text.endswith("}\n")
