"""TensorBoard and W&B each on its own; how the logger drives them is tested with the logger."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import wandb.errors

from reverie.orchestration.sinks import TensorBoardSink, WandbConfig, WandbSink
from reverie.types import ReverieError


def test_tensorboard_in_an_unusable_place_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReverieError, match="cannot write TensorBoard events"):
        TensorBoardSink(tmp_path / "file" / "tensorboard").write({"a": 1.0}, step=1, line=0)


class FakeRun:
    """Stands for a W&B run that already has two lines on the server."""

    step = 2

    def __init__(self) -> None:
        self.logged: list[int] = []

    def define_metric(self, name: str, *, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "agent_steps")

    def log(self, values: dict[str, float], *, step: int, commit: bool) -> None:
        self.logged.append(step)


def test_wandb_gets_only_the_lines_it_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    monkeypatch.setattr("wandb.init", lambda **_: run)
    sink = WandbSink(tmp_path, config=WandbConfig(mode="online"), run_config={})
    sink.rewind(step=10, line=1)
    for line in range(1, 4):
        sink.write({"agent_steps": 10.0 * line}, step=10 * line, line=line)
    assert run.logged == [2, 3]


def test_wandb_sends_no_crash_reports_when_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "true")
    seen: list[str] = []
    monkeypatch.setattr("wandb.init", lambda **_: (seen.append(os.environ["WANDB_ERROR_REPORTING"]), FakeRun())[1])
    WandbSink(tmp_path, config=WandbConfig(mode="online"), run_config={})
    WandbSink(tmp_path, config=WandbConfig(mode="offline"), run_config={})
    assert seen == ["true", "false"]


def test_wandb_that_refuses_to_start_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("api_key not configured\nsecond line")

    monkeypatch.setattr("wandb.init", refuse)
    with pytest.raises(ReverieError, match=r"api_key not configured second line.*wandb login"):
        WandbSink(tmp_path, config=WandbConfig(mode="online"), run_config={})


def test_missing_wandb_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ReverieError, match=r'pip install "reverie\[wandb\]"'):
        WandbSink(tmp_path, config=WandbConfig(mode="offline"), run_config={})
