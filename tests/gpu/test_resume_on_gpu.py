"""Exact resume on one CUDA device with captured updates: a stopped and resumed run is the same run."""

from __future__ import annotations

import signal
from pathlib import Path

from killer import Killer
from same_run import SMALL_RUN, differences

ON_GPU = (*SMALL_RUN, "runtime=gpu")


def test_a_stopped_and_resumed_run_is_the_same(killer: Killer, tmp_path: Path) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    ended = killer.run("train", *ON_GPU, f"logdir={whole}")
    assert ended.code == 0, ended.output
    ended = killer.signalled(
        *("train", *ON_GPU, f"logdir={stopped}"),
        until=lambda: "Evaluation after 144" in killer.output(),
        delay_seconds=0.1,
        number=signal.SIGTERM,
    )
    assert ended.code == 143, ended.output
    ended = killer.run("resume", str(stopped))
    assert ended.code == 0, ended.output
    assert differences(stopped, whole) == []


def test_eager_and_captured_runs_are_the_same(killer: Killer, tmp_path: Path) -> None:
    runs = {value: tmp_path / value for value in ("true", "false")}
    for value, run in runs.items():
        ended = killer.run("train", *ON_GPU, f"runtime.captures_updates={value}", f"logdir={run}")
        assert ended.code == 0, ended.output
    assert differences(*runs.values()) == []
