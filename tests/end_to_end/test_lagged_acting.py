"""Acting with the weights of one update ago, simulators in workers: another run, and as exact after a kill."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest
from killer import Forget, Kill, Killer
from same_run import SMALL_RUN, differences, replay_files

LAGGED = (*SMALL_RUN, "runtime.acting_weights=lagged", "environment.in_workers=true", "environment.num_workers=2")


@pytest.fixture(scope="module")
def whole(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    ended = killer.run("train", *LAGGED, f"logdir={run}")
    assert ended.code == 0, ended.output
    return run


@pytest.fixture(scope="module")
def killed(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("killed") / "run"
    kill = Kill("reverie.workflows.dreamer:Dreamer.update", "after", 14)
    assert killer.run("train", *LAGGED, f"logdir={run}", kill=kill).code == -signal.SIGKILL
    return run


def test_it_is_not_the_run_that_acts_with_current_weights(whole: Path, reference: Path) -> None:
    assert differences(whole, reference) != []


def test_a_killed_run_is_the_same_run(killed: Path, whole: Path, killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    ended = killer.run("resume", str(run))
    assert ended.code == 0, ended.output
    assert differences(run, whole) == []
    assert replay_files(run) == replay_files(whole)


def test_without_the_lagged_weights_it_is_another(killed: Path, whole: Path, killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    ended = killer.run("resume", str(run), forget=Forget("reverie.runtime.acting:Acting.set_state"))
    assert ended.code == 0, ended.output
    assert differences(run, whole) != []


def test_a_run_may_go_on_with_current_weights(killed: Path, killer: Killer, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    ended = killer.run("resume", str(run), "runtime.acting_weights=current")
    assert ended.code == 0, ended.output
