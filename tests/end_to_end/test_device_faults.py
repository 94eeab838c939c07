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


def recording_that_failed(cause: Exception) -> ReverieError:
    """As `runtime/capture.py` reports it."""
    error = ReverieError("'update' cannot be captured in a CUDA graph; mark it with `not_capturable`.")
    error.__cause__ = cause
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


WANT = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
NO_MEMORY = "cpu has too little memory: choose a smaller size="


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (torch.AcceleratorError(FAULT), "cpu failed (CUDA error: an illegal memory access was encountered): see docs"),
        (RuntimeError("Triton Error [CUDA]: misaligned address"), "cpu failed (Triton Error [CUDA]: misaligned"),
        (WANT, NO_MEMORY),
        (torch.AcceleratorError("CUDA error: out of memory"), NO_MEMORY),
        (recording_that_failed(WANT), NO_MEMORY),
    ],
    ids=["fault", "fault of a kernel", "memory", "memory of the driver", "memory of a recording"],
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


def test_a_device_that_fails_before_there_is_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def assemble(*_: Any, **__: Any) -> None:
        raise WANT

    monkeypatch.setattr("reverie.session.assemble", assemble)
    assert main(["train", *SMALL_RUN, f"logdir={tmp_path / 'run'}"]) == 1
    assert capsys.readouterr().err.strip().endswith("; nothing was written.")
    assert not (tmp_path / "run").exists()


def test_other_errors_pass_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    logdir = f"logdir={tmp_path / 'run'}"
    with monkeypatch.context() as patched:
        fail_after(1, RuntimeError("shapes do not match"), patched)
        with pytest.raises(RuntimeError, match="shapes do not match"):
            main(["train", *SMALL_RUN, logdir])
    asked = torch.AcceleratorError("CUDA error: operation not permitted when stream is capturing")
    fail_after(1, recording_that_failed(asked), monkeypatch)
    assert main(["train", *SMALL_RUN, logdir]) == 2
    assert capsys.readouterr().err.strip().endswith("mark it with `not_capturable`.")


def test_the_display_stops_though_the_device_cannot_say_how_long_it_worked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[None] = []
    monkeypatch.setattr("reverie.orchestration.display.PlainDisplay.stop", lambda _: stops.append(None))

    def show(*_: Any, **__: Any) -> None:
        raise torch.AcceleratorError(FAULT)

    monkeypatch.setattr("reverie.orchestration.orchestrator.Orchestrator._show", show)
    assert main(["train", *SMALL_RUN, f"logdir={tmp_path / 'run'}"]) == 1
    assert stops == [None]
