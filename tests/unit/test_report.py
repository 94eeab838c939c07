"""What is left when a run ends: metrics that can be read, a picture, a table, commands."""

from __future__ import annotations

import io
import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from rich.console import Console

from reverie.orchestration.logger import METRICS_FILE, Counters, Logger, LoggingConfig
from reverie.orchestration.report import Summary, closing_commands, final_table, learning_curve, read_metrics
from reverie.types import ReverieError


def write_run(folder: Path, *, names: list[str], count: int = 5) -> Path:
    logger = Logger(folder, config=LoggingConfig(), sinks=[])
    for step in range(1, count + 1):
        counters = Counters(agent_steps=step, env_frames=4 * step, updates=step, wall_seconds=1.0)
        logger.write_now(counters, {name: float(step * index) for index, name in enumerate(names, start=1)})
    logger.close()
    return folder


def pixels(path: Path) -> np.ndarray:
    return np.asarray(imread(path))


def test_read_metrics_gives_numbers_and_leaves_a_torn_last_line_out(tmp_path: Path) -> None:
    path = tmp_path / METRICS_FILE
    path.write_text('{"agent_steps": 1, "a": "NaN", "b": "-Infinity"}\n{"agent_steps": 2, "a": 0.5}\n{"agent_steps": 3')
    first, second = read_metrics(path)
    assert math.isnan(first["a"])
    assert first["b"] == -math.inf
    assert second == {"agent_steps": 2.0, "a": 0.5}


@pytest.mark.parametrize("line", ["not json", "[1, 2]", '{"a": "many"}', '{"a": null}'])
def test_read_metrics_names_a_damaged_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / METRICS_FILE
    path.write_text(json.dumps({"a": 1}) + "\n" + line + "\n" + json.dumps({"a": 2}) + "\n")
    with pytest.raises(ReverieError, match=r"metrics\.jsonl is damaged in line 2"):
        read_metrics(path)


def test_learning_curve_draws_what_the_run_holds(tmp_path: Path) -> None:
    run = write_run(tmp_path, names=["collect/return_mean"])
    path = run / "learning_curve.png"
    assert learning_curve(run) == path
    small = pixels(path)
    assert small.shape[1] == 1200
    assert small.std() > 0.05
    write_run(tmp_path, names=["collect/return_mean", "eval/return_mean", "eval/return_std", "train/loss/actor"])
    learning_curve(run)
    assert pixels(path).shape[0] > small.shape[0]  # the losses have a panel of their own


@pytest.mark.parametrize("spread", [["eval/return_std"], ["eval/return_min", "eval/return_max"]])
def test_evaluations_get_a_band(tmp_path: Path, spread: list[str]) -> None:
    for name in ("bare", "band"):
        (tmp_path / name).mkdir()
    names = ["eval/return_mean"]
    bare = learning_curve(write_run(tmp_path / "bare", names=names))
    band = learning_curve(write_run(tmp_path / "band", names=names + spread))
    assert bare is not None
    assert band is not None

    def tinted(path: Path) -> int:
        red, green, blue = (pixels(path)[..., channel] for channel in range(3))
        return int(((red > green + 0.05) & (green > blue + 0.03) & (blue > 0.7)).sum())

    assert tinted(band) > 20 * max(1, tinted(bare))


def test_learning_curve_without_data_draws_nothing(tmp_path: Path) -> None:
    assert learning_curve(tmp_path) is None
    assert learning_curve(write_run(tmp_path, names=["train/loss/actor"])) is None
    assert not (tmp_path / "learning_curve.png").exists()


def test_learning_curve_skips_values_that_are_not_finite(tmp_path: Path) -> None:
    (tmp_path / METRICS_FILE).write_text('{"env_frames": 1, "collect/return_mean": "NaN"}\n')
    assert learning_curve(tmp_path) is None


def test_learning_curve_that_cannot_be_drawn_is_a_sentence_and_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (write_run(tmp_path, names=["collect/return_mean"]) / "learning_curve.png").mkdir()
    assert learning_curve(tmp_path) is None
    assert "learning_curve.png cannot be drawn (Is a directory)" in capsys.readouterr().out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learning_curve.png", METRICS_FILE]
    said: list[str] = []
    (tmp_path / METRICS_FILE).write_text("torn\n")
    assert learning_curve(tmp_path, say=said.append) is None
    assert "metrics.jsonl is damaged in line 1" in said[0]


@pytest.mark.parametrize(("below", "above"), [(0, 1), (0, 4), (1, 4), (3, 5), (3, 7)])
def test_of_two_equal_losses_both_are_seen(tmp_path: Path, below: int, above: int) -> None:
    names = [f"train/loss/{letter}" for letter in "abcdefgh"]
    with (tmp_path / METRICS_FILE).open("w") as file:
        for step in range(20):
            values = {name: 4.0**index * (1 + step / 20) for index, name in enumerate(names)}
            values[names[above]] = values[names[below]]
            print(json.dumps({"env_frames": step, "collect/return_mean": 1.0} | values), file=file)
    path = learning_curve(tmp_path)
    assert path is not None
    picture = pixels(path)[-290:, :, :3]  # the loss panel without its legend
    for index in range(len(names)):
        colour = np.array(to_rgb(f"C{index}"))
        assert (np.abs(picture - colour).max(-1) < 0.12).sum() > 100, f"the curve of {names[index]} is hidden"


def test_importing_the_report_does_not_import_matplotlib() -> None:
    code = "import sys, reverie.orchestration.report; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_final_table_tells_the_score_the_evaluation_and_the_folder() -> None:
    summary = Summary(
        experiment="dreamer_cartpole",
        task="gym_CartPole-v1",
        status="finished",
        agent_steps=40_000,
        env_frames=80_000,
        episodes=400,
        updates=20_000,
        wall_seconds=521.0,
        score_now=None,
        score_best=499.5,
        evaluation={"return_mean": 488.125, "episodes": 20.0},
        logdir="runs/one",
    )
    console = Console(file=io.StringIO(), width=80, record=True)
    console.print(final_table(summary))
    text = console.export_text()
    rows = {line[:37].strip(): line[37:].strip() for line in text.splitlines()[2:] if line.strip()}
    assert "dreamer_cartpole on gym_CartPole-v1: finished" in text
    assert rows["agent steps"] == "40,000"
    assert rows["time"] == "8:41"
    assert rows["training score, last 10 episodes"] == "-"
    assert rows["training score, best"] == "499.5"
    assert rows["evaluation return mean"] == "488.1"
    assert rows["evaluation episodes"] == "20"
    assert rows["run folder"] == "runs/one"


def test_closing_commands_can_be_pasted() -> None:
    assert closing_commands("runs/one") == [
        "reverie eval runs/one",
        "reverie resume runs/one",
        "tensorboard --logdir runs/one",
    ]
    assert closing_commands(Path("my runs/one"))[0] == "reverie eval 'my runs/one'"
    assert closing_commands("one", trusted=["mine"])[:2] == [
        "reverie eval one --allow mine",
        "reverie resume one --allow mine",
    ]


def test_closing_commands_work_for_who_used_the_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = tmp_path / "check out" / ".venv" / "bin"
    programs.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.setenv("REVERIE_COMMAND", "../check out/reverie")
    monkeypatch.chdir(tmp_path)
    evaluate, resume, tensorboard = closing_commands("runs/one")
    assert (evaluate, resume) == ("'../check out/reverie' eval runs/one", "'../check out/reverie' resume runs/one")
    assert tensorboard == "'check out/.venv/bin/python' -m tensorboard.main --logdir runs/one"
    (programs / "tensorboard").touch()
    assert closing_commands("runs/one")[2] == "'check out/.venv/bin/tensorboard' --logdir runs/one"
    monkeypatch.chdir(programs.parent.parent)
    assert closing_commands("runs/one")[2] == ".venv/bin/tensorboard --logdir runs/one"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert shlex.split(closing_commands("runs/one")[2])[0] == str(programs / "tensorboard")
