"""TD-MPC2 looked at: what it expects and what it plans, in files and metrics, while the run stays the same."""

from __future__ import annotations

import io
import json
import math
import signal
from pathlib import Path

import pytest
from killer import Kill, Killer
from PIL import Image
from same_run import differences, metric_lines
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from test_dreams import state_bytes, videos
from test_tdmpc_runs import SMALL_RUN

from reverie.cli import main

RUN = (
    *(word for word in SMALL_RUN if not word.startswith(("logging.has_tensorboard", "evaluation.open_loop"))),
    *("evaluation.open_loop.length=12", "evaluation.open_loop.context=3", "evaluation.open_loop.sequences=4"),
)
KINDS = ("open_loop-lines.png", "episode-lines.png", "plans-lines.png")
BLIND = "components.probe=null"


@pytest.fixture(scope="module")
def watched(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nobody writes into it."""
    run = tmp_path_factory.mktemp("watched") / "run"
    ended = killer.run("train", *RUN, f"logdir={run}")
    assert ended.code == 0, ended.output
    return run


def evaluations(run: Path) -> list[dict[str, float]]:
    return [line for line in metric_lines(run) if "eval/return_mean" in line]


def test_every_evaluation_shows_dreams_and_plans(watched: Path) -> None:
    names = sorted({name.rpartition("-")[0].rpartition("-")[0] for name in videos(watched)})
    assert len(names) == len(evaluations(watched)) == 2
    assert set(videos(watched)) == {f"{name}-{kind}" for name in names for kind in KINDS}
    for name in names:
        assert Image.open(io.BytesIO(videos(watched)[f"{name}-plans-lines.png"])).size[0] == 1000
    shown = EventAccumulator(str(watched / "tensorboard")).Reload().Images("eval/plans/lines")
    assert [image.encoded_image_string for image in shown] == [
        videos(watched)[f"{name}-plans-lines.png"] for name in names
    ]


def test_the_model_is_measured(watched: Path) -> None:
    for line in evaluations(watched):
        health = {name.removeprefix("eval/model/"): value for name, value in line.items() if "/model/" in name}
        expected = {"vector_error_1", "vector_error_5", "latent_error_1", "latent_error_5", "reward_error"}
        assert expected | {"return_error", "continue_brier"} <= health.keys()
        assert all(math.isfinite(value) for value in health.values())
        assert health["latent_error_5"] > 0


def test_without_a_probe_it_is_the_same_agent_and_says_once_what_cannot_be_seen(
    killer: Killer, watched: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    ended = killer.run("train", *RUN, BLIND, f"logdir={run}")
    assert ended.code == 0, ended.output
    assert ended.output.count("Pictures show rewards and ends, but no observations") == 1
    assert "`components.probe` is null" in ended.output
    assert set(videos(run)) == set(videos(watched)), "rewards are still drawn"
    seen, unseen = state_bytes(watched), state_bytes(run)
    assert {name for name in seen if "/probe/" not in f"/{name}/"} == set(unseen)
    assert {name: seen[name] for name in unseen} == unseen
    hidden = ("probe/", "model/vector_error")
    told = [
        {name: value for name, value in line.items() if not any(part in name for part in hidden)}
        for line in metric_lines(watched)
    ]
    assert told == metric_lines(run)
    assert main(["eval", str(run), "--json", "--video", "--episodes", "2"]) == 0
    shown = capsys.readouterr()
    assert {Path(path).name.partition("seed-0-")[2] for path in json.loads(shown.out)["videos"]} == set(KINDS)
    assert shown.err.count("no observations") == 1


@pytest.mark.long
def test_a_run_killed_while_it_draws_is_the_same_run(killer: Killer, watched: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    kill = Kill("reverie.workflows.tdmpc:Tdmpc.plans", "after", 2)
    ended = killer.run("train", *RUN, f"logdir={run}", kill=kill)
    assert ended.code == -signal.SIGKILL, ended.output
    ended = killer.run("resume", str(run))
    assert ended.code == 0, ended.output
    assert differences(run, watched) == []
    assert videos(run) == videos(watched)


def test_eval_shows_a_saved_agent(killer: Killer, watched: Path) -> None:
    before = videos(watched)
    shown = killer.run("eval", str(watched), "--json", "--video", "--seed", "7", "--episodes", "2")
    assert shown.code == 0, shown.output
    scores = json.loads(shown.output)
    assert scores["model/latent_error_1"] > 0
    written = {Path(path).name for path in scores["videos"]}
    assert set(videos(watched)) == set(before) | written
    assert {name.partition("seed-7-")[2] for name in written} == set(KINDS)
    for name in written:
        (watched / "videos" / name).unlink()
