"""A captured update skips like an eager one, and a run on a GPU stops with a black box that a CPU can execute."""

from __future__ import annotations

from pathlib import Path

import torch
from killer import Killer
from same_run import SMALL_RUN, status, unlike
from test_capture import made, state

from reverie.buffers.disk_rows import DiskRows
from reverie.orchestration.black_box import read_black_box


def test_a_captured_update_that_is_not_finite_changes_nothing() -> None:
    run = made("vector", "optimizers.model.warmup_updates=0")
    captured = run.captured()
    for _ in range(5):  # recorded in the fourth
        assert captured()["skipped"] == 0
    assert run.buffer._rows is not None
    assert not isinstance(run.buffer._rows, DiskRows)
    rewards = run.buffer._rows.held(128)["reward"]
    sound = rewards.clone()
    before = state(run)
    rewards.fill_(float("nan"))
    for _ in range(2):
        assert captured()["skipped"] == 1
    rewards.copy_(sound)
    after = state(run)
    assert unlike(after["workflow"], before["workflow"], "") == []
    stored = [buffer["stored"] for buffer in (after["buffer"], before["buffer"]) if isinstance(buffer, dict)]
    assert len(stored) == 2
    assert unlike(*stored, "") == []
    assert captured()["skipped"] == 0
    assert unlike(state(run)["workflow"], before["workflow"], "") != []


def test_a_run_on_a_gpu_stops_with_a_black_box(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    settings = ["runtime=gpu", "experiment.device=cuda", "optimizers.model.learning_rate=1e30", f"logdir={run}"]
    ended = killer.run("train", *SMALL_RUN, *settings)
    assert ended.code == 1, ended.output
    assert "stopped: 5 updates in a row" in ended.output
    assert status(run) == "failed"
    (folder,) = (run / "blackbox").iterdir()
    box = read_black_box(folder)
    assert torch.device(box["device"]).type == "cuda"
    # The host hears of an update during the next one, so the metrics reach one update further than the black box.
    assert box["metrics"][-1]["updates"] == box["updates"] + 1
    ended = killer.run("replay-update", str(folder))
    assert ended.code == 0, ended.output
    assert "first non-finite tensor: " in ended.output
    assert "are others here" in ended.output
