"""`reverie bench` as a person types it: real updates, numbers with names, and one sentence for a mistake."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from reverie.cli import main
from reverie.commands.bench import default_size
from reverie.commands.catalogue import options

SMALL = ("training.batch_size=2", "training.batch_length=4", "workflow.horizon=2", "runtime=cpu")
POSITIVE = (
    "ms_per_update",
    "updates_per_second",
    "seconds_to_first_update",
    "parameters",
    "peak_memory_bytes",
    "flops_per_update",
)
PARTS = ["replay", "encoder", "observe", "model_losses", "imagination", "actor_critic", "optimizer", "other"]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def benched(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["bench", *words, *SMALL, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_numbers_have_names_and_nothing_is_left_behind(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    document = benched(capsys, "--size", "debug", "--calls", "2")
    assert set(document) == {"device", "hardware", "versions", "commit", "overrides", "results"}
    assert document["device"] == "cpu"
    assert document["overrides"] == list(SMALL)
    (result,) = document["results"]
    assert all(result[name] > 0 for name in POSITIVE)
    assert result["size"] == "debug"
    assert (result["observations"], result["pictures"], result["actions"]) == ("image", 1, "discrete")
    assert result["precision"] == "float32"
    assert (result["loops"], result["calls"]) == (4, 2)
    assert result["updates_per_second"] == pytest.approx(1000 / result["ms_per_update"], rel=1e-3)
    assert not result["is_captured"]
    assert not result["is_compiled"]
    for name in ("seconds_to_captured", "peak_flops_per_second", "model_flop_utilisation", "ms_per_part"):
        assert result[name] is None
    assert list(folder.iterdir()) == []


def test_parts_add_up(capsys: pytest.CaptureFixture[str]) -> None:
    (result,) = benched(capsys, "--size", "debug", "--observations", "vector", "--parts")["results"]
    assert list(result["ms_per_part"]) == PARTS
    assert sum(result["ms_per_part"].values()) == pytest.approx(result["ms_per_update"], abs=0.01)


def test_options_and_settings_reach_what_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (
        benched(capsys, "--observations", "vector", "--precision", "bfloat16", "--size", "debug", setting)["results"][0]
        for setting in ("size.deter=8", "size.deter=16")
    )
    assert small["precision"] == "bfloat16"
    assert small["calls"] == 1
    assert large["parameters"] > small["parameters"]
    assert large["flops_per_update"] > small["flops_per_update"]


def test_another_experiment_brings_its_algorithm_and_its_pictures(capsys: pytest.CaptureFixture[str]) -> None:
    words = (
        "experiment=tdmpc_dmc_vision",
        "--actions",
        "continuous",
        "--parts",
        "training.batch_size=2",
        "runtime=cpu",
    )
    assert main(["bench", *words, "workflow.plans=false"]) == 0
    said = capsys.readouterr().out
    assert "image (3 pictures behind each other), continuous actions, float32" in said
    assert "targets of the values" in said
    (line,) = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert (line["pictures"], line["actions"]) == (3, "continuous")
    assert {"targets", "model", "policy", "other"} < set(line["ms_per_part"])


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        ([], "12m"),
        (["training.batch_size=8"], "12m"),
        (["experiment=tdmpc_dmc_vision"], "tdmpc2_5m"),
        (["+experiment=tdmpc1_dmc", "training.batch_size=8"], "tdmpc1"),
    ],
)
def test_the_size_on_a_gpu_is_that_of_the_experiment(overrides: list[str], size: str) -> None:
    assert default_size(overrides, is_cuda=True) == size
    assert default_size(overrides, is_cuda=False) == "debug"


@pytest.fixture
def own_source(repo_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several sizes are measured in processes of their own, which find the package in this checkout."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(repo_root / "src"), *sys.path]))


@pytest.mark.long
def test_a_table_for_people_and_a_line_of_json_for_each_size(
    capfd: pytest.CaptureFixture[str], own_source: None
) -> None:
    words = ("--size", "debug", "tiny", *SMALL, "size.blocks=4", "--observations", "vector", "--parts", "--calls", "2")
    assert main(["bench", *words]) == 0
    said = capfd.readouterr()
    for text in (
        "One update on cpu: vector, continuous actions, float32, eager",
        "debug",
        "tiny",
        "updates per second",
        "RSSM along the",
    ):
        assert text in said.out
    assert "No utilisation" in said.out
    lines = [json.loads(line) for line in said.out.splitlines() if line.startswith("{")]
    assert [line["size"] for line in lines] == ["debug", "tiny"]
    assert lines[0]["parameters"] < lines[1]["parameters"]
    assert "Measuring tiny on cpu" in said.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--size", "13m"], f"unknown size '13m': choose among {', '.join(options('size'))}."),
        (["--size", "debug", "13m"], "unknown size '13m'"),
        (["12m"], "sizes after --size, got '12m'"),
        (["size=12m"], "a size is given as --size 12m"),
        (["--calls", "0"], "argument --calls: must be a positive integer, got '0'"),
        (["--observations", "sound"], "invalid choice: 'sound'"),
        (["--actions", "none"], "invalid choice: 'none'"),
        (["--size", "12m", "experiment=tdmpc_dmc"], "choose a size of this algorithm"),
        (["--precision", "float8"], "invalid choice: 'float8'"),
        (["workflow.horison=3"], "did you mean `workflow.horizon`?"),
        (["workflow.horizon=x"], "`workflow.horizon` must be an integer, got 'x'"),
        (["experiment=random_cartpole"], "no phase of this configuration updates anything"),
        (["experiment.device=tpu"], "experiment.device must be auto, cpu, cuda or cuda:N"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words]) == 2
    said = capsys.readouterr()
    assert complaint in said.err
    assert said.out == ""
    assert "Traceback" not in said.err


def test_a_size_that_fails_among_several_ends_the_command(capfd: pytest.CaptureFixture[str], own_source: None) -> None:
    assert main(["bench", "--size", "debug", "tiny", "workflow.horizon=0"]) == 2
    said = capfd.readouterr()
    assert said.err.count("workflow.horizon") == 1
    assert said.out == ""
