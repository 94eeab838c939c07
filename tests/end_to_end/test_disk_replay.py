"""Replay on disk, with batches fetched ahead: killed and resumed it is the same run, and damage is named."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killer import Forget, Kill, Killer
from same_run import SMALL_RUN, differences, metric_lines, replay_files

_SAVER = "reverie.orchestration.checkpoint:CheckpointManager"
_UPDATE = "reverie.workflows.dreamer:Dreamer.update"
_ROW = "reverie.buffers.disk_rows:DiskRows.put"
ON_DISK = (*SMALL_RUN, "buffer=disk_buffer", "buffer.replay.capacity=128")
KILLS = [
    Kill(f"{_SAVER}._write_chunk", "within", 1),
    Kill(_UPDATE, "after", 9),
    Kill(f"{_SAVER}._write_chunk", "after", 1),
    Kill(_ROW, "after", 20),
]


@pytest.fixture(scope="module")
def whole(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on disk that nobody disturbed."""
    run = tmp_path_factory.mktemp("on_disk") / "run"
    ended = killer.run("train", *ON_DISK, f"logdir={run}")
    assert ended.code == 0, ended.output
    assert "Replay (replay) is kept on disk: " in ended.output
    return run


@pytest.fixture(scope="module")
def killed(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One that was killed soon after the first checkpoint that names a chunk, to be copied."""
    run = tmp_path_factory.mktemp("killed_on_disk") / "run"
    ended = killer.run("train", *ON_DISK, f"logdir={run}", kill=Kill(_UPDATE, "after", 12))
    assert ended.code == -signal.SIGKILL, ended.output
    return run


def test_kills_change_nothing(killer: Killer, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", *ON_DISK, f"logdir={run}"]
    for kill in KILLS:
        ended = killer.run(*command, kill=kill)
        assert ended.code == -signal.SIGKILL, f"{kill} was not reached: {ended.output}"
        command = ["resume", str(run)]
    ended = killer.run(*command)
    assert ended.code == 0, ended.output
    assert differences(run, whole) == []
    assert replay_files(run) == replay_files(whole)
    assert len(metric_lines(run)) >= 10


def test_the_comparison_notices_batches_that_were_not_restored(
    killer: Killer, killed: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    forget = Forget("reverie.buffers.prefetched:PrefetchedBuffer.set_state", "ahead")
    ended = killer.run("resume", str(run), forget=forget)
    assert ended.code == 0, ended.output
    assert differences(run, whole) != []


def damaged(file: Path, kind: str) -> None:
    if kind == "missing":
        file.unlink()
        return
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(("kind", "words"), [("flipped bit", "checksum differs"), ("missing", "missing")])
def test_the_run_goes_on_from_what_is_whole(
    kind: str, words: str, killer: Killer, killed: Path, whole: Path, tmp_path: Path
) -> None:
    """The newest chunk is named by the newest checkpoint alone: the one before it is used, and the rows come again."""
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    chunk = max((run / "replay" / "replay").glob("*.safetensors"))
    damaged(chunk, kind)
    ended = killer.run("resume", str(run))
    assert ended.code == 0, ended.output
    assert f"is damaged (replay/replay/{chunk.name}: {words}); using" in ended.output
    assert differences(run, whole) == []


@pytest.mark.parametrize(("kind", "words"), [("flipped bit", "checksum differs"), ("missing", "missing")])
def test_the_run_is_refused_where_nothing_is_whole(
    kind: str, words: str, killer: Killer, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for chunk in (run / "replay" / "replay").glob("*.safetensors"):
        damaged(chunk, kind)
    ended = killer.run("resume", str(run))
    assert ended.code == 2, ended.output
    assert "no checkpoint in" in ended.output
    assert words in ended.output


def test_rows_move_to_the_disk_and_back(killer: Killer, whole: Path, tmp_path: Path) -> None:
    """A longer run with its rows elsewhere: nothing is lost, and what cannot be the same is said."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    for key, home, updates in (("buffer.replay.device", "host", 7), ("buffer.device", "disk", 9)):
        settings = [f"{key}={home}", f"training.phases.2.duration_updates={updates}"]
        ended = killer.run("resume", str(run), *settings)
        assert ended.code == 0, ended.output
        assert f"to {home}: from here on the run differs" in ended.output
    assert metric_lines(run)[-1]["updates"] > metric_lines(whole)[-1]["updates"]


@pytest.mark.long
def test_memory_does_not_grow_with_the_rows_on_disk(killer: Killer, tmp_path: Path) -> None:
    """Without ``return_large_blocks`` every chunk of pictures leaves two thirds of a megabyte behind."""
    collect = "[{name: collect, type: online, buffer: replay, duration_steps: 24000, workflow_hooks: [collect]}]"
    settings = ["task=builtin_image", "size=debug", "buffer=disk_buffer", "buffer.replay.capacity=24000"]
    settings += [f"training.phases={collect}", "environment.num_envs=16", "evaluation.every_steps=null"]
    command = [sys.executable, "-m", "reverie", "train", *settings, f"logdir={tmp_path / 'run'}"]
    sizes: dict[int, int] = {}
    chunks = tmp_path / "run" / "replay" / "replay"
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            count = len(list(chunks.glob("*.safetensors")))  # time is no measure: others use the processors too
            for line in status.splitlines():
                if line.startswith("RssAnon:"):
                    sizes[count] = int(line.split()[1]) * 1024
            time.sleep(0.1)
    assert process.returncode == 0
    seen = sorted(sizes)
    assert abs(sizes[seen[-2]] - sizes[seen[len(seen) // 2]]) < 3_000_000
