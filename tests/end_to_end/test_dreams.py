"""Runs that show what their world model expects: the files, the metrics, and that the run itself stays the same."""

from __future__ import annotations

import io
import json
import math
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killer import Kill, Killer
from PIL import Image, ImageSequence
from same_run import differences, last_buffers, metric_lines
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from reverie.orchestration.pictures import BORDER, CONTEXT_COLOUR, FRAME_MILLISECONDS, IMAGINED_COLOUR
from reverie.orchestration.state_tree import flattened

SIZE, CONTEXT, LENGTH, COLUMNS = 32, 3, 12, 2
RUN = (
    *("experiment=dreamer_cartpole", "size=debug", "environment.num_envs=2", "workflow.horizon=2"),
    *("training.total_timesteps=48", "training.batch_size=2", "training.batch_length=6", "training.train_ratio=4"),
    *("evaluation.every_steps=24", "evaluation.episodes=2", "evaluation.envs=2", "checkpoint.every_steps=16"),
    *("buffer.replay.capacity=1000", "buffer.evaluation.capacity=84", "logging.every_steps=20"),
    f"evaluation.open_loop={{length: {LENGTH}, context: {CONTEXT}, sequences: 4, columns: {COLUMNS}}}",
)
IMAGE_RUN = (*RUN, "task=builtin_image", f"environment.simulator.size={SIZE}")
EVALUATIONS = ("0000000024-0000000007", "0000000048-0000000016")
"""Agent steps and updates at the two evaluations."""


@pytest.fixture(scope="module")
def image_run(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody writes into it."""
    run = tmp_path_factory.mktemp("dreams") / "image"
    ended = killer.run("train", *IMAGE_RUN, f"logdir={run}")
    assert ended.code == 0, ended.output
    return run


def evaluations(run: Path) -> list[dict[str, Any]]:
    return [line for line in metric_lines(run) if "eval/return_mean" in line]


def frames(path: Path) -> tuple[np.ndarray, list[int]]:
    """The frames of a GIF, and how long each lasts."""
    found = [
        (np.asarray(frame.convert("RGB")).astype(int), int(frame.info["duration"]))
        for frame in ImageSequence.Iterator(Image.open(path))
    ]
    return np.stack([picture for picture, _ in found]), [duration for _, duration in found]


def tile(pictures: np.ndarray, row: int, column: int) -> np.ndarray:
    """One picture over time, as small as it was before it was enlarged."""
    step = SIZE + 2 * BORDER
    small = pictures[:, ::2, ::2]
    return small[:, row * step : (row + 1) * step, column * step : (column + 1) * step]


def test_every_evaluation_has_its_files(image_run: Path) -> None:
    kinds = ("open_loop-image.gif", "open_loop-lines.png", "episode-image.gif", "episode-lines.png")
    expected = {f"{name}-{kind}" for name in EVALUATIONS for kind in kinds}
    assert {path.name for path in (image_run / "videos").iterdir()} == expected


def test_the_video_shows_stored_pictures_and_marks_what_was_seen(image_run: Path) -> None:
    pictures, durations = frames(image_run / "videos" / f"{EVALUATIONS[-1]}-open_loop-image.gif")
    assert durations == [FRAME_MILLISECONDS] * LENGTH
    assert pictures.shape[1:3] == (3 * (SIZE + 2 * BORDER) * 2, COLUMNS * (SIZE + 2 * BORDER) * 2)
    buffer = last_buffers(image_run)[1]["evaluation"]
    age = torch.arange(len(buffer) // 2 - 1, -1, -1).expand(2, -1)  # two environments
    stored = buffer.aged(torch.arange(2), age).obs["image"].numpy().astype(int)
    streams = set()
    for column in range(COLUMNS):
        truth = tile(pictures, 0, column)[:, BORDER:-BORDER, BORDER:-BORDER]
        # A GIF has 256 colours a frame, and the fresh model's own pictures want more.
        found = [
            (stream, start)
            for stream in range(len(stored))
            for start in range(stored.shape[1] - LENGTH + 1)
            if abs(stored[stream, start : start + LENGTH] - truth).max() < 20
        ]
        assert len(found) == 1, "the truth is one stored sequence and no other"
        streams.add(found[0][0])
        for row in range(3):
            edge = tile(pictures, row, column)[:, 0, 0]
            is_context = abs(edge - CONTEXT_COLOUR).sum(-1) < abs(edge - IMAGINED_COLOUR).sum(-1)
            assert is_context.tolist() == [True] * CONTEXT + [False] * (LENGTH - CONTEXT)
    assert streams == {0, 1}


def test_the_episode_is_whole_and_the_model_is_corrected_on_the_way(image_run: Path) -> None:
    pictures, durations = frames(image_run / "videos" / f"{EVALUATIONS[-1]}-episode-image.gif")
    assert durations == [FRAME_MILLISECONDS] * 21
    edge = tile(pictures, 0, 0)[:, 0, 0]
    is_context = abs(edge - CONTEXT_COLOUR).sum(-1) < abs(edge - IMAGINED_COLOUR).sum(-1)
    assert np.flatnonzero(is_context).tolist() == [0, 1, 2, LENGTH, LENGTH + 1, LENGTH + 2]


def test_tensorboard_shows_the_same_files(image_run: Path) -> None:
    shown = EventAccumulator(str(image_run / "tensorboard")).Reload()
    for kind, suffix in (("open_loop", "image.gif"), ("episode", "image.gif"), ("open_loop", "lines.png")):
        images = shown.Images(f"eval/{kind}/{suffix.partition('.')[0]}")
        assert [image.step for image in images] == [24, 48]
        for image, name in zip(images, EVALUATIONS, strict=True):
            assert image.encoded_image_string == (image_run / "videos" / f"{name}-{kind}-{suffix}").read_bytes()


def test_every_evaluation_has_its_metrics(image_run: Path) -> None:
    for line in evaluations(image_run):
        health = {name.removeprefix("eval/model/"): value for name, value in line.items() if "/model/" in name}
        always = {
            *("image_error_1", "image_error_5", "reward_bias", "reward_error"),
            *("continue_brier", "continue_predicted", "continue_real"),
            *("return_real", "return_imagined", "return_error"),
        }
        assert always <= health.keys() <= always | {"reward_correlation"}
        assert all(math.isfinite(value) for value in health.values())
        assert 0 < health["image_error_1"] < 1
        assert health["continue_real"] == 1.0
    assert len(evaluations(image_run)) == 2


def state_bytes(run: Path) -> dict[str, bytes]:
    """Every array of the last checkpoint but those of the logger, which holds the length of a file."""
    state = last_buffers(run)[0].state
    _, arrays = flattened({name: part for name, part in state.items() if name != "logger"})
    return {name: value.contiguous().numpy().tobytes() for name, value in arrays.items() if value.dtype.itemsize > 2}


def test_a_run_that_is_not_looked_at_is_the_same_run(killer: Killer, image_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = killer.run("train", *IMAGE_RUN, "evaluation.open_loop.sequences=0", f"logdir={run}")
    assert ended.code == 0, ended.output
    assert not (run / "videos").exists()
    watched, unwatched = metric_lines(image_run), metric_lines(run)
    assert not any("/model/" in name for line in unwatched for name in line)
    assert [{name: value for name, value in line.items() if "/model/" not in name} for line in watched] == unwatched
    assert state_bytes(run) == state_bytes(image_run)
    assert len(state_bytes(run)) > 50


@pytest.mark.parametrize("when", ["within", "after"])
def test_a_run_killed_while_it_draws_is_the_same_run(
    killer: Killer, image_run: Path, tmp_path: Path, when: Any
) -> None:
    run = tmp_path / "run"
    kill = Kill("reverie.orchestration.model_review:ModelReview.review", when, 2)
    ended = killer.run("train", *IMAGE_RUN, f"logdir={run}", kill=kill)
    assert ended.code == -signal.SIGKILL, ended.output
    ended = killer.run("resume", str(run))
    assert ended.code == 0, ended.output
    assert differences(run, image_run) == []
    assert videos(run) == videos(image_run)


def videos(run: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "videos").iterdir()}


def test_vectors_are_drawn_as_lines_and_not_at_every_evaluation(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    ended = killer.run("train", *RUN, "task=builtin_discrete", "evaluation.open_loop.pictures_every=2", f"logdir={run}")
    assert ended.code == 0, ended.output
    names = [f"{EVALUATIONS[0]}-{kind}-lines.png" for kind in ("episode", "open_loop")]
    assert sorted(videos(run)) == names
    assert Image.open(io.BytesIO(videos(run)[names[0]])).size[0] == 1000
    assert [{"eval/model/vector_error_1", "eval/model/vector_error_5"} <= line.keys() for line in evaluations(run)] == [
        True,
        True,
    ]


def test_rows_that_do_not_suffice_are_reported_once(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    short = ("task=builtin_memory", "evaluation.open_loop.context=7", f"logdir={run}")
    ended = killer.run("train", *RUN, *short)
    assert ended.code == 0, ended.output
    assert ended.output.count("No metrics and no pictures of the world model") == 1
    assert "`evaluation.open_loop.context` (7): make that smaller" in ended.output
    assert not (run / "videos").exists()
    assert len(evaluations(run)) == 2


def test_eval_shows_on_request(killer: Killer, image_run: Path, tmp_path: Path) -> None:
    before = videos(image_run)
    plain = killer.run("eval", str(image_run), "--json")
    assert "model/image_error_1" not in json.loads(plain.output)
    assert videos(image_run) == before
    shown = killer.run("eval", str(image_run), "--json", "--video", "--seed", "7", "--episodes", "3")
    assert shown.code == 0, shown.output
    scores = json.loads(shown.output)
    assert 0 < scores["model/image_error_1"] < 1
    written = {Path(path).name for path in scores["videos"]}
    assert set(videos(image_run)) == set(before) | written
    assert len(written) == 4
    assert all("seed-7" in name for name in written)
    for name in written:
        (image_run / "videos" / name).unlink()


def test_eval_says_what_it_cannot_show(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "random"
    ended = killer.run("train", "experiment=random_cartpole", "training.total_timesteps=20", f"logdir={run}")
    assert ended.code == 0, ended.output
    assert not (run / "videos").exists()
    ended = killer.run("eval", str(run), "--video")
    assert ended.code == 2
    assert "RandomPolicyWorkflow predicts no observations" in ended.output
    assert ended.output.count("\n") == 1


def test_a_place_where_nothing_can_be_written_is_a_sentence(killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    options = ("task=builtin_discrete", "evaluation.open_loop.pictures_every=null", f"logdir={run}")
    assert killer.run("train", *RUN, *options).code == 0
    (run / "videos").write_text("in the way")
    ended = killer.run("eval", str(run), "--video", "--episodes", "1")
    assert ended.code == 2
    assert f"cannot write pictures to {run / 'videos'}" in ended.output


@pytest.mark.parametrize(
    ("given", "named"),
    [("context=0", "context"), ("length=5", "length"), ("sequences=-1", "sequences"), ("columns=0", "columns")],
)
def test_numbers_out_of_range_are_refused(killer: Killer, tmp_path: Path, given: str, named: str) -> None:
    ended = killer.run("train", f"evaluation.open_loop.{given}", f"logdir={tmp_path / 'run'}")
    assert ended.code == 2
    assert f"`evaluation.open_loop.{named}` must be at least" in ended.output
    assert not (tmp_path / "run").exists()
