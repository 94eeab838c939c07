"""A GPU that runs out of memory or fails in the middle of a run. The errors are torch's own, raised by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from killer import Killer
from same_run import SMALL_RUN, checkpoint_names

from reverie.cli import main
from reverie.types import ReverieError
from reverie.workflows.base import WorldModelWorkflow

FAULT = "CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in ..."


def recording_that_failed() -> ReverieError:
    """As `runtime/capture.py` reports it."""
    error = ReverieError("'update' cannot be captured in a CUDA graph")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    return error


def fail_after(steps: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    collect, calls = WorldModelWorkflow.collect_step, 0

    def collect_step(self: WorldModelWorkflow, *arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > steps:
            raise error
        return collect(self, *arguments, **named)

    monkeypatch.setattr(WorldModelWorkflow, "collect_step", collect_step)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.AcceleratorError(FAULT), "cpu failed (CUDA error: an illegal memory access was encountered): see docs"),
        (torch.OutOfMemoryError("CUDA out of memory."), "cpu has too little memory: choose a smaller size="),
        (recording_that_failed(), "cpu has too little memory: choose a smaller size="),
    ],
    ids=["fault", "memory", "memory of a recording"],
)
def test_a_device_that_fails_ends_the_run_with_a_sentence_and_its_checkpoint(
    error: Exception, words: str, killer: Killer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patched:
        fail_after(20, error, patched)
        assert main(["train", *SMALL_RUN, f"logdir={run}"]) == 1
    said = capsys.readouterr().err.strip().splitlines()[-1]
    last = checkpoint_names(run)[-1]
    assert said.startswith(f"reverie: {words}")
    assert said.endswith(f"; the last good checkpoint {last} is untouched.")
    assert json.loads((run / "run.json").read_text())["status"] == "failed"
    assert killer.run("resume", str(run)).code == 0


def test_a_device_that_fails_before_the_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    fail_after(1, torch.OutOfMemoryError("CUDA out of memory."), monkeypatch)
    assert main(["train", *SMALL_RUN, f"logdir={tmp_path / 'run'}"]) == 1
    assert capsys.readouterr().err.strip().endswith("; the run has no checkpoint yet.")


def test_other_errors_keep_their_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_after(1, RuntimeError("shapes do not match"), monkeypatch)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        main(["train", *SMALL_RUN, f"logdir={tmp_path / 'run'}"])
