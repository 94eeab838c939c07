"""A signal in the middle of an evaluation is obeyed at once, and the resumed run evaluates as if nothing had been."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from same_run import SMALL_RUN, differences, metric_lines

from reverie.cli import main
from reverie.components.controllers.dreamer import DreamerPolicy
from reverie.types import ReverieError


@pytest.mark.parametrize("acts", [5, 40, 110], ids=["first", "later", "last"])
def test_the_resumed_run_is_the_same_run(acts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``acts`` steps into all evaluations together lie in the first, a later and the final evaluation."""
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert main(["train", *SMALL_RUN, f"logdir={whole}"]) == 0

    act, done = DreamerPolicy.act, []

    def stopping(self: DreamerPolicy, *given: Any, mode: Any) -> Any:
        if mode == "eval":
            done.append(mode)
            if len(done) == acts:
                os.kill(os.getpid(), signal.SIGTERM)
        return act(self, *given, mode=mode)

    monkeypatch.setattr(DreamerPolicy, "act", stopping)
    assert main(["train", *SMALL_RUN, f"logdir={stopped}"]) == 143
    assert len(done) == acts, "the evaluation went on after the signal"
    assert len(metric_lines(stopped)) < len(metric_lines(whole))
    assert main(["resume", str(stopped)]) == 0
    assert differences(whole, stopped) == []


@pytest.mark.parametrize("acts", [1, 40, 110], ids=["begun", "later", "last"])
def test_an_evaluation_that_fails_costs_nothing_that_was_learned(
    acts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where a simulator's package is gone. Once it is there, the run is the one that nothing happened to."""
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    assert main(["train", *SMALL_RUN, f"logdir={whole}"]) == 0
    act, done = DreamerPolicy.act, []

    def failing(self: DreamerPolicy, *given: Any, mode: Any) -> Any:
        done.extend([mode] if mode == "eval" else [])
        if len(done) == acts:
            raise ReverieError("the simulator is gone.")
        return act(self, *given, mode=mode)

    with monkeypatch.context() as patch:
        patch.setattr(DreamerPolicy, "act", failing)
        assert main(["train", *SMALL_RUN, "checkpoint.every_steps=1000", f"logdir={failed}"]) == 2
    assert "the simulator is gone." in capsys.readouterr().err
    assert main(["resume", str(failed)]) == 0
    assert differences(whole, failed) == []
