"""Ctrl-C and SIGTERM for real processes: the step is finished, the run saved, and the resumed run is the same run."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killer import Kill, Killer
from same_run import SMALL_RUN, checkpoint_names, differences, status

from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager

SLOW = ("evaluation.episodes=20000", "evaluation.envs=2")
"""An evaluation that lasts for minutes."""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_the_resumed_run_is_the_same(
    number: int, code: int, killer: Killer, reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = killer.signalled(
        *("train", *SMALL_RUN, f"logdir={run}"),
        until=lambda: "Evaluation after 72" in killer.output(),
        delay_seconds=0.1,
        number=number,
    )
    assert ended.code == code, ended.output
    assert "Stopping: saving a checkpoint." in ended.output
    assert f"reverie resume {run}" in ended.output
    assert "Traceback" not in ended.output
    assert status(run) == "interrupted"
    assert 72 <= int(checkpoint_names(run)[-1].partition("-")[0]) < 272
    ended = killer.run("resume", str(run))
    assert ended.code == 0, ended.output
    assert status(run) == "finished"
    assert differences(run, reference) == []


def test_one_ctrl_c_does_not_wait_for_a_long_evaluation(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    published = run / "checkpoints" / "latest"
    # Step 64 is saved; two steps later an evaluation begins that would last for minutes.
    ended = killer.signalled(
        *("train", *SMALL_RUN, *SLOW, f"logdir={run}"),
        until=lambda: published.is_file() and published.read_text().startswith("0000000064"),
        delay_seconds=2,
        number=signal.SIGINT,
    )
    assert ended.code == 130, ended.output
    assert "Stopping: saving a checkpoint." in ended.output
    assert "Evaluation after" not in ended.output
    assert status(run) == "interrupted"


def test_a_second_ctrl_c_leaves_at_once_and_harms_no_checkpoint(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    # The step that never ends comes after the checkpoint of step 96.
    ended = killer.signalled(
        *("train", *SMALL_RUN, f"logdir={run}"),
        kill=Kill("reverie.workflows.dreamer:Dreamer.update", "never", 6),
        until=lambda: "waiting for signals" in killer.output(),
        delay_seconds=0.2,
        number=signal.SIGINT,
        gap_seconds=0.5,
    )
    assert ended.code == 130, ended.output
    assert "Stopping" not in ended.output, "the first Ctrl-C did not wait for the step"
    said: list[str] = []
    loaded = CheckpointManager(run, config=CheckpointConfig(), say=said.append).load()
    assert loaded is not None
    assert loaded.state["global_step"] == 96
    assert said == []


def test_the_live_display_gives_the_cursor_back(repo_root: Path, tmp_path: Path) -> None:
    """A fresh `python -m reverie train` in a terminal of its own, and one Ctrl-C typed into it."""
    run = tmp_path / "run"
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "reverie", "train", *_endless(SMALL_RUN), f"logdir={run}"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(repo_root / "src"), "TERM": "xterm-256color", "OMP_NUM_THREADS": "1"},
    )
    os.close(follower)
    try:
        screen = _read(leader, until=b"updates/s", seconds=240)
        process.send_signal(signal.SIGINT)
        screen += _read(leader, until=None, seconds=120)
        assert process.wait(60) == 130
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
        os.close(leader)
    assert b"\x1b[?25l" in screen
    assert screen.rindex(b"\x1b[?25h") > screen.rindex(b"\x1b[?25l")
    assert f"reverie resume {run}".encode() in screen
    assert status(run) == "interrupted"


def _endless(overrides: tuple[str, ...]) -> list[str]:
    return [text.replace("duration_steps: 208", "duration_steps: 100000") for text in overrides]


def _read(descriptor: int, *, until: bytes | None, seconds: float) -> bytes:
    """What the terminal shows, up to a word, the end, or the time limit."""
    seen = b""
    end = time.monotonic() + seconds
    while time.monotonic() < end and (until is None or until not in seen):
        if select.select([descriptor], [], [], 0.5)[0]:
            try:
                piece = os.read(descriptor, 65536)
            except OSError:  # Linux reports the end of a terminal like this
                break
            if not piece:
                break
            seen += piece
    return seen
