"""TensorBoard and W&B each on its own; how the logger drives them is tested with the logger."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import wandb
import wandb.errors
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from reverie.orchestration.line_plots import Line, line_plot
from reverie.orchestration.pictures import Picture, video
from reverie.orchestration.sinks import TensorBoardSink, WandbConfig, WandbSink
from reverie.types import ReverieError


def test_tensorboard_in_an_unusable_place_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ReverieError, match="cannot write TensorBoard events"):
        TensorBoardSink(tmp_path / "file" / "tensorboard").write({"a": 1.0}, step=1, line=0)


def shown(folder: Path, name: str) -> list[tuple[int, float]]:
    return [(event.step, event.value) for event in EventAccumulator(str(folder)).Reload().Scalars(name)]


def write_lines(sink: TensorBoardSink, lines: range, *, step: int, value: float = 0.0) -> None:
    for line in lines:
        sink.write({"agent_steps": step, "train/loss": line + value}, step=step, line=line)


def test_tensorboard_draws_the_lines_of_an_offline_phase_side_by_side(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    write_lines(sink, range(3), step=10)
    sink.write({"agent_steps": 10, "eval/return_mean": 7.0}, step=10, line=3)
    write_lines(sink, range(4, 5), step=20)
    sink.close()
    assert shown(tmp_path, "train/loss") == [(10, 0.0), (11, 1.0), (12, 2.0), (20, 4.0)]
    assert shown(tmp_path, "eval/return_mean") == [(12, 7.0)]
    assert [step for step, _ in shown(tmp_path, "agent_steps")] == [10, 11, 12, 20]


@pytest.mark.parametrize("kept", range(7))
def test_tensorboard_is_cut_to_the_line_though_the_step_stands_still(tmp_path: Path, kept: int) -> None:
    steps = [10, 11, 12, 13, 14, 15, 20, 21]
    whole, torn = tmp_path / "whole", tmp_path / "torn"
    for folder in (whole, torn):
        sink = TensorBoardSink(folder)
        sink.rewind(line=0)
        write_lines(sink, range(3), step=10)
        if folder == torn:
            write_lines(sink, range(3, 5), step=10, value=100.0)
            sink.rewind(line=3)
        write_lines(sink, range(3, 6), step=10)
        if folder == torn:
            sink = TensorBoardSink(folder)  # a new process: the old one was killed
            sink.rewind(line=kept)
            write_lines(sink, range(kept, 6), step=10)
        write_lines(sink, range(6, 8), step=20)
        sink.close()
    assert shown(torn, "train/loss") == shown(whole, "train/loss") == list(zip(steps, range(8), strict=True))


def test_tensorboard_that_joins_late_is_cut_by_the_lines_it_has(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.rewind(line=4)  # lines 0 to 3 were written while it was off
    write_lines(sink, range(4, 8), step=10)
    sink.rewind(line=6)
    write_lines(sink, range(6, 7), step=10)
    sink.close()
    assert [value for _, value in shown(tmp_path, "train/loss")] == [4.0, 5.0, 6.0]


@pytest.mark.parametrize("tail", [1, 14, 40])
def test_tensorboard_drops_a_line_that_a_kill_left_unfinished(tmp_path: Path, tail: int) -> None:
    sink = TensorBoardSink(tmp_path)
    write_lines(sink, range(3), step=10)
    (file,) = tmp_path.iterdir()
    os.truncate(file, file.stat().st_size - tail)
    sink = TensorBoardSink(tmp_path)
    sink.rewind(line=2)
    write_lines(sink, range(2, 4), step=10)
    assert [value for _, value in shown(tmp_path, "train/loss")] == [0.0, 1.0, 2.0, 3.0]


PICTURES = {
    "eval/open_loop/image": Picture(data=b"GIF89a and so on", format="gif", width=20, height=10),
    "eval/open_loop/lines": Picture(data=b"not looked into", format="png", width=8, height=6),
}


def test_tensorboard_keeps_pictures_as_they_are_and_cuts_them_with_their_line(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    write_lines(sink, range(1), step=10)
    sink.write({"eval/return_mean": 1.0}, step=20, line=1, pictures=PICTURES)
    sink.close()
    shown = EventAccumulator(str(tmp_path)).Reload()
    for name, picture in PICTURES.items():
        (image,) = shown.Images(name)
        assert (image.step, image.width, image.height) == (20, picture.width, picture.height)
        assert image.encoded_image_string == picture.data
    sink = TensorBoardSink(tmp_path)
    sink.rewind(line=1)
    write_lines(sink, range(1, 2), step=20)
    sink.close()
    assert EventAccumulator(str(tmp_path)).Reload().Tags()["images"] == []


class FakeRun:
    """Stands for a W&B run that already has two lines on the server."""

    step = 2

    def __init__(self) -> None:
        self.logged: list[int] = []
        self.values: dict[str, Any] = {}

    def define_metric(self, name: str, *, step_metric: str) -> None:
        assert (name, step_metric) == ("*", "agent_steps")

    def log(self, values: dict[str, Any], *, step: int, commit: bool) -> None:
        self.logged.append(step)
        self.values |= values


def test_wandb_gets_only_the_lines_it_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    monkeypatch.setattr("wandb.init", lambda **_: run)
    sink = WandbSink(tmp_path, config=WandbConfig(mode="online"), run_config={})
    sink.rewind(line=1)
    for line in range(1, 4):
        sink.write({"agent_steps": 10.0 * line}, step=10 * line, line=line)
    assert run.logged == [2, 3]


def test_wandb_gets_videos_and_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = FakeRun()
    monkeypatch.setattr("wandb.init", lambda **_: run)
    sink = WandbSink(tmp_path, config=WandbConfig(mode="online"), run_config={})
    is_context = np.array([[True, False]])
    pictures = {
        "eval/open_loop/image": video(np.zeros((1, 2, 8, 8, 3), np.uint8), np.ones((1, 2, 8, 8, 3)), is_context),
        "eval/open_loop/lines": line_plot(
            [Line(name="reward", truth=np.zeros((1, 2)), predicted=np.ones((1, 2)))], is_context, title="open loop"
        ),
    }
    sink.write({"eval/return_mean": 1.0}, step=30, line=5, pictures=pictures)
    assert run.values["eval/return_mean"] == 1.0
    shown, lines = run.values["eval/open_loop/image"], run.values["eval/open_loop/lines"]
    assert isinstance(shown, wandb.Video)
    assert isinstance(lines, wandb.Image)
    assert lines.image.size == (pictures["eval/open_loop/lines"].width, pictures["eval/open_loop/lines"].height)


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
