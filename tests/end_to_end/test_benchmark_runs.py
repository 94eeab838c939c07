"""Benchmarks of training: how many work at a time, what a deadline does, what goes on later, what a file keeps."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

STUB = """
import json, signal, sys, time
from pathlib import Path

def stopped(*_):
    sys.exit(128 + signal.SIGTERM)

signal.signal(signal.SIGTERM, stopped)
given = dict(word.split("=") for word in sys.argv[1:])
logdir, done = Path(given["logdir"]), "running"
logdir.mkdir(parents=True, exist_ok=True)
(logdir / "run.json").write_text(json.dumps({"status": "running"}))
with (logdir.parent / "log").open("a") as log:
    print("begin", file=log, flush=True)
    time.sleep(float(given["seconds"]) if not (logdir / "been").exists() else 0)
    print("end", file=log, flush=True)
if "code" in given:
    sys.exit(int(given["code"]))
(logdir / "run.json").write_text(json.dumps({"status": "finished"}))
"""
"""Stands for `reverie train`."""


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, repo_root: Path) -> ModuleType:
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    module = importlib.import_module("training_runs")
    monkeypatch.setattr(module, "TRAIN", [sys.executable, "-c", STUB])
    return module


def test_as_many_as_asked_for_work_at_a_time(runs: ModuleType, tmp_path: Path) -> None:
    made = [
        runs.TrainingRun(logdir=tmp_path / f"{name}", notes=tmp_path / f"notes{name}", settings=["seconds=0.1"])
        for name in range(3)
    ]
    runs.work(made, parallel=1)
    assert (tmp_path / "log").read_text().split() == ["begin", "end"] * 3
    assert all(run.is_finished for run in made)
    assert [session["side_by_side"] for run in made for session in run.sessions()] == [1, 1, 1]
    runs.work(made, parallel=3)
    assert [len(run.sessions()) for run in made] == [1, 1, 1], "finished runs are not run again"


def test_what_a_deadline_stops_goes_on_later(runs: ModuleType, tmp_path: Path) -> None:
    run = runs.TrainingRun(logdir=tmp_path / "run", notes=tmp_path, settings=["seconds=60"])
    runs.work([run], parallel=1, minutes=0.02)
    assert not run.is_finished
    (first,) = run.sessions()
    assert 1 < first["seconds"] < 60
    run.logdir.mkdir(exist_ok=True)  # on a busy machine it was stopped before it could make it
    (run.logdir / "been").touch()
    runs.work([run], parallel=1)
    assert run.is_finished
    assert len(run.sessions()) == 2
    assert runs.seconds_of(run, [])["all"] == pytest.approx(sum(one["seconds"] for one in run.sessions()), abs=0.1)


def test_one_that_fails_stops_the_others_and_is_named(runs: ModuleType, tmp_path: Path) -> None:
    good = runs.TrainingRun(logdir=tmp_path / "good", notes=tmp_path / "1", settings=["seconds=60"])
    bad = runs.TrainingRun(logdir=tmp_path / "bad", notes=tmp_path / "2", settings=["seconds=0.5", "code=3"])
    with pytest.raises(SystemExit, match=r"bad ended with code 3: see .*2/output.txt"):
        runs.work([good, bad], parallel=2)
    assert len(good.sessions()) == 1
    assert bad.sessions() == []


def test_results_of_other_runs_stay_in_the_file(runs: ModuleType, tmp_path: Path) -> None:
    file, keys = tmp_path / "results" / "one.json", ("task", "seed")
    old = [{"task": "b", "seed": 0, "score": 1}, {"task": "a", "seed": 1, "score": 2}]
    runs.written(file, old, about={"experiment": "x"}, keys=keys)
    everything = runs.written(file, [{"task": "b", "seed": 0, "score": 3}], about={"experiment": "x"}, keys=keys)
    assert everything == [{"task": "a", "seed": 1, "score": 2}, {"task": "b", "seed": 0, "score": 3}]
    assert json.loads(file.read_text()) == {"experiment": "x", "runs": everything}


def test_a_score_of_tdmpc_stands_beside_what_was_published(runs: ModuleType) -> None:
    benchmark = importlib.import_module("tdmpc_dmc")
    for task, mean in (("dmc_walker_walk", 978.7), ("dmc_cheetah_run", 757.6)):
        reached = benchmark._reached(task, [[100_000.0, 1.0, 0.0, 2.0], [500_000.0, mean / 2, 0.0, mean]])
        assert reached["published"]["mean"] == mean
        assert reached["share_of_published"] == 0.5
    assert benchmark._reached("dmc_walker_walk", [])["score"] is None
    coarse = benchmark._coarse([[1000, 2.0, 1], [10_000, 5.0, 2], [10_500, 7.0, 1]])
    assert coarse == [[10_000, 4.0, 3], [20_000, 7.0, 1]]
