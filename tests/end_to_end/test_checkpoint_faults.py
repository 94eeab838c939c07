"""Real faults: SIGKILL before every file operation of a save, a disk that is full, a place that is read-only.

The faults happen in processes of their own: this file, run as a script, is that process, and prints what it saw.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.orchestration import checkpoint
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.types import ReverieError, State

STEPS = ("_write_chunks", "_write_chunk", "_write_folder", "_publish", "_point_latest", "_prune")
OPERATIONS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate")
NOBODY = 65534


class Rows:
    """A buffer whose chunks hold their own index. ``size`` sets the bytes of a chunk."""

    def __init__(self, chunks: range, size: int = 64) -> None:
        self._chunks = chunks
        self._size = size
        self.loaded: dict[int, int] = {}

    def closed_chunks(self) -> range:
        return self._chunks

    def chunk(self, index: int) -> dict[str, Tensor]:
        return {"obs": torch.full((self._size,), index, dtype=torch.uint8)}

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None:
        self.loaded[index] = int(arrays["obs"].unique().item())


class Careless(CheckpointManager):
    """The negative control: writes straight under the final name. Kill tests that cannot tell are worth nothing."""

    def _write_folder(self, name: str, state: State, chunks: checkpoint.ChunkRecords) -> None:
        super()._write_folder(name, state, chunks)
        final = self._checkpoints / name
        final.mkdir()
        for file in sorted((self._checkpoints / f".tmp-{name}").iterdir()):
            shutil.copy(file, final / file.name)

    def _publish(self, name: str) -> None:
        shutil.rmtree(self._checkpoints / f".tmp-{name}")


def state_at(step: int, size: int = 8) -> State:
    return {"global_step": step, "weights": torch.full((size,), float(step))}


def manager(folder: Path, said: list[str], kind: type[CheckpointManager] = CheckpointManager) -> CheckpointManager:
    return kind(folder, config=CheckpointConfig(every_steps=10, keep=2), say=said.append)


def save(saver: CheckpointManager, number: int, size: int = 8) -> None:
    saver.save(f"{number:06d}", state_at(number, size), {"replay": Rows(range(number - 2, number + 1), size)})


def resumed(folder: Path) -> tuple[CheckpointManager, dict[str, Any]]:
    """What the next process finds, as plain facts."""
    said: list[str] = []
    loader = manager(folder, said)
    loaded = loader.load()
    assert loaded is not None
    rows = Rows(range(0))
    loader.restore_buffers(loaded, {"replay": rows})
    step = loaded.state["global_step"]
    is_true = torch.equal(loaded.state["weights"], torch.full_like(loaded.state["weights"], float(step)))
    return loader, {"step": step, "is_true": is_true, "chunks": rows.loaded, "said": said}


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_operation(count: int) -> None:
    """Die just before the ``count``-th file operation from now on. Python announces each one to audit hooks."""
    remaining = count

    def hook(event: str, _: tuple[object, ...]) -> None:
        nonlocal remaining
        if event in OPERATIONS:
            remaining -= 1
            if remaining < 0:
                kill()

    sys.addaudithook(hook)


def kill_at_step(saver: CheckpointManager, step: str, *, after: bool) -> None:
    original: Callable[..., object] = getattr(saver, step)

    def replacement(*arguments: object) -> object:
        if not after:
            kill()
        result = original(*arguments)
        kill()
        return result

    setattr(saver, step, replacement)


def killed_save(folder: Path, arm: Callable[[CheckpointManager], None], kind: type[CheckpointManager]) -> bool:
    """Resume in a forked process and save the fourth checkpoint, armed. True when the process was killed."""
    pid = os.fork()
    if pid == 0:
        saver = manager(folder, [], kind)
        loaded = saver.load()
        assert loaded is not None
        saver.restore_buffers(loaded, {"replay": Rows(range(0))})
        arm(saver)
        save(saver, 4)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return os.WTERMSIG(status) == signal.SIGKILL
    assert os.WEXITSTATUS(status) == 0
    return False


def outcome(parent: Path, arm: Callable[[CheckpointManager], None], kind: type[CheckpointManager]) -> dict[str, Any]:
    """Three good checkpoints, a killed fourth; what the next process finds, and what it has after it saved again."""
    folder = parent / "killed"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(parent / "prepared", folder)
    was_killed = killed_save(folder, arm, kind)
    loader, found = resumed(folder)
    save(loader, 4)
    save(loader, 5)
    _, later = resumed(folder)
    leftovers = sorted(path.name for path in folder.rglob(".tmp-*"))
    names = sorted(path.name for path in folder.rglob("*") if path.parent.name in ("checkpoints", "replay"))
    return {"was_killed": was_killed, "found": found, "later": later, "leftovers": leftovers, "names": names}


def prepare(folder: Path) -> None:
    saver = manager(folder, [])
    for number in (2, 3):
        save(saver, number)


def outcomes_at_operations(parent: Path, kind: type[CheckpointManager]) -> list[dict[str, Any]]:
    outcomes: list[dict[str, Any]] = []
    while not outcomes or outcomes[-1]["was_killed"]:
        count = len(outcomes)
        outcomes.append(outcome(parent, lambda _, count=count: kill_at_operation(count), kind))
    return outcomes


def outcomes_at_steps(parent: Path) -> list[dict[str, Any]]:
    return [
        outcome(parent, lambda saver, step=step, after=after: kill_at_step(saver, step, after=after), CheckpointManager)
        for step in STEPS
        for after in (False, True)
    ]


def refused_save(folder: Path, spoil: Callable[[], None], repair: Callable[[], None]) -> dict[str, Any]:
    """Save twice, spoil the place, save again, look; then repair the place and save once more."""
    saver = manager(folder, [])
    save(saver, 2, size=20_000)
    save(saver, 3, size=20_000)
    before = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    spoil()
    try:
        save(saver, 4, size=20_000)
    except ReverieError as error:
        message = str(error)
    else:
        message = ""
    untouched = all(Path(path).read_bytes() == data for path, data in before.items())
    leftovers = [path.name for path in folder.rglob(".tmp-*")]
    _, found = resumed(folder)
    repair()
    save(saver, 4, size=20_000)
    _, later = resumed(folder)
    return {"message": message, "untouched": untouched, "leftovers": leftovers, "found": found, "later": later}


def full_disk(folder: Path, *, is_mounted: bool) -> dict[str, Any]:
    ballast = folder / "ballast"

    def fill() -> None:
        room = os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize
        # The chunk of 20 kB still fits; the checkpoint's 80 kB of arrays do not.
        ballast.write_bytes(b"x" * (room - 60_000))

    if is_mounted:
        return refused_save(folder / "run", fill, ballast.unlink)
    # No mount is allowed here: the system's limit on file sizes refuses the same write, with another error number.
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    return refused_save(
        folder / "run",
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, hard)),
        lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard)),
    )


def read_only_place(folder: Path, *, is_mounted: bool) -> dict[str, Any]:
    def remount(option: str) -> None:
        subprocess.run(["mount", "-o", f"remount,{option}", str(folder)], check=True)

    def permit(mode: int) -> None:
        for path in [folder / "run", *(folder / "run").rglob("*")]:
            if path.is_dir():
                path.chmod(mode)

    if is_mounted:
        return refused_save(folder / "run", lambda: remount("ro"), lambda: remount("rw"))
    if os.getuid() == 0:  # root may write anywhere, so the run is made and refused as nobody
        os.chown(folder, NOBODY, NOBODY)
        os.setuid(NOBODY)
    return refused_save(folder / "run", lambda: permit(0o555), lambda: permit(0o755))


def script(fault: str, folder: Path, place: str) -> object:
    torch.set_num_threads(1)
    prepare(folder / "prepared")
    if fault == "operations":
        return outcomes_at_operations(folder, Careless if place == "careless" else CheckpointManager)
    if fault == "steps":
        return outcomes_at_steps(folder)
    shutil.rmtree(folder / "prepared")
    return {"full": full_disk, "read-only": read_only_place}[fault](folder, is_mounted=place == "mounted")


def seen(fault: str, folder: Path, *, place: str = "plain", mounter: list[str] | None = None) -> Any:
    command = [sys.executable, __file__, fault, str(folder), place]
    if place == "mounted" and mounter is not None:
        mount = 'mount -t tmpfs -o size=600k tmpfs "$1" && shift && exec "$@"'
        command = [*mounter, "sh", "-c", mount, "sh", str(folder), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def permitted_mounter(folder: Path) -> list[str] | None:
    """A command that gives a process mounts of its own, which vanish with it; None where the system allows none."""
    for mounter in (["unshare", "-m"], ["unshare", "-rm"]):
        probe = [*mounter, "mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
        try:
            if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
                return mounter
        except FileNotFoundError:
            return None
    return None


def check_kills(outcomes: list[dict[str, Any]]) -> None:
    for result in outcomes:
        step = result["found"]["step"]
        assert step in (3, 4)
        assert result["found"] == facts(step)
        assert result["later"] == facts(5)
        assert result["leftovers"] == []
        chunks = [f"{index:08d}.safetensors" for index in range(2, 6)]
        assert result["names"] == [*chunks, "000004", "000005", "latest", "replay"]


def facts(step: int) -> dict[str, Any]:
    chunks = {str(index): index for index in range(step - 2, step + 1)}
    return {"step": step, "is_true": True, "chunks": chunks, "said": []}


def test_a_kill_around_every_step_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    outcomes = seen("steps", tmp_path)
    assert [result["was_killed"] for result in outcomes] == [True] * 2 * len(STEPS)
    check_kills(outcomes)
    published = 2 * STEPS.index("_publish") + 1
    assert [result["found"]["step"] for result in outcomes] == [3] * published + [4] * (2 * len(STEPS) - published)


def test_a_kill_before_every_file_operation_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    outcomes = seen("operations", tmp_path)
    # A chunk, three files, the pointer, and the removal of one checkpoint and one chunk: each has several operations.
    assert len(outcomes) > 15
    check_kills(outcomes)


def test_the_kill_test_would_notice_a_careless_save(tmp_path: Path) -> None:
    outcomes = seen("operations", tmp_path, place="careless")
    assert any("is damaged" in text for result in outcomes for text in result["found"]["said"])


def check_refusal(result: dict[str, Any], words: tuple[str, ...], folder: Path) -> None:
    message = result["message"]
    assert message.startswith("cannot save checkpoint 000004 in ")
    assert any(word in message for word in words), message
    assert "the last good checkpoint 000003 is untouched" in message
    assert message.endswith(f"then `reverie resume {folder / 'run'}`.")
    assert "\n" not in message
    assert result["untouched"]
    assert result["leftovers"] == []
    assert result["found"] == facts(3)
    assert result["later"] == facts(4)


@pytest.mark.parametrize("way", ["best", "plain"])
def test_a_full_disk_is_a_sentence_and_the_last_good_checkpoint_stays(way: str, tmp_path: Path) -> None:
    mounter = permitted_mounter(tmp_path) if way == "best" else None
    result = seen("full", tmp_path, place="mounted" if mounter else "plain", mounter=mounter)
    check_refusal(result, ("no space left on device; ",) if mounter else ("file too large; ",), tmp_path)


@pytest.mark.parametrize("way", ["best", "plain"])
def test_a_read_only_place_is_a_sentence_and_the_last_good_checkpoint_stays(way: str) -> None:
    # Not under pytest's own folder: that one is closed to nobody, who plays the part where root must not.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        mounter = permitted_mounter(folder) if way == "best" else None
        result = seen("read-only", folder, place="mounted" if mounter else "plain", mounter=mounter)
        check_refusal(result, ("read-only file system; ",) if mounter else ("permission denied; ",), folder)


if __name__ == "__main__":
    print(json.dumps(script(sys.argv[1], Path(sys.argv[2]), sys.argv[3])))
