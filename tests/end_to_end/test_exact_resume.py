"""Runs killed with SIGKILL and resumed are the same run: weights, moments, replay and metrics, bit for bit."""

from __future__ import annotations

import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from killer import Forget, Kill, Killer
from same_run import SMALL_RUN, differences, metric_lines, replay_files

_SAVER = "reverie.orchestration.checkpoint:CheckpointManager"
_COLLECT = "reverie.workflows.base:WorldModelWorkflow.collect_step"
_UPDATE = "reverie.workflows.dreamer:Dreamer.update"
_OPTIMIZER = "reverie.runtime.optimizer:LaProp.apply"
_PHASE_END = "reverie.orchestration.phase_scheduler:PhaseScheduler._leave"

POINTS = {
    "collection": [Kill(_COLLECT, "before", 5), Kill(_COLLECT, "after", 30), Kill(_COLLECT, "before", 23)],
    "update": [Kill(_UPDATE, "before", 2), Kill(_OPTIMIZER, "before", 9), Kill(_UPDATE, "after", 12)],
    "chunk write": [
        Kill(f"{_SAVER}._write_chunk", "within", 1),
        Kill(f"{_SAVER}._write_chunk", "after", 1),
        Kill(f"{_SAVER}._write_chunk", "before", 3),
    ],
    "checkpoint write before the rename": [
        Kill(f"{_SAVER}._write_folder", "within", 2),
        Kill(f"{_SAVER}._write_folder", "after", 3),
        Kill(f"{_SAVER}._publish", "before", 2),
    ],
    "checkpoint write after the rename": [
        Kill(f"{_SAVER}._publish", "after", 2),
        Kill(f"{_SAVER}._point_latest", "within", 2),
        Kill(f"{_SAVER}._prune", "before", 3),
    ],
    "phase change": [Kill(_PHASE_END, "before", 1), Kill(_PHASE_END, "after", 2), Kill(_PHASE_END, "after", 1)],
}

FORGOTTEN = {
    "stream of the acting policy": Forget("reverie.runtime.rng:RandomStreams.set_state", "act/train"),
    "stream of evaluations": Forget("reverie.runtime.rng:RandomStreams.set_state", "act/eval"),
    "stream of updates": Forget("reverie.runtime.rng:RandomStreams.set_state", "update"),
    "stream of the replay": Forget("reverie.runtime.rng:RandomStreams.set_state", "replay/replay"),
    "environments": Forget("reverie.environments.parallel.separate:SeparateEnvironments.set_state"),
    "moments of the optimiser": Forget("reverie.runtime.optimizer:LaProp.set_state", "square"),
    "rows since the last chunk": Forget(
        "reverie.buffers.world_model_sequence:WorldModelSequenceBuffer.set_state", "tail"
    ),
    "windows handed out": Forget("reverie.buffers.selection:Selection.set_state", "fresh"),
    "priorities of windows": Forget("reverie.buffers.selection:Selection.set_state", "priorities"),
    "pending metrics": Forget("reverie.orchestration.logger:Logger.set_state", "pending"),
    "count of evaluations": Forget("reverie.orchestration.evaluator:Evaluator.set_state"),
    "policy carry": Forget("reverie.workflows.base:WorldModelWorkflow.set_state", "workflow_custom"),
}


def check_same(run: Path, reference: Path) -> None:
    assert differences(run, reference) == []
    assert replay_files(run) == replay_files(reference)


@pytest.mark.parametrize("point", POINTS)
def test_three_kills_at_a_point_change_nothing(point: str, killer: Killer, reference: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    command = ["train", *SMALL_RUN, f"logdir={run}"]
    for kill in POINTS[point]:
        ended = killer.run(*command, kill=kill)
        assert ended.code == -signal.SIGKILL, f"{kill} was not reached: {ended.output}"
        command = ["resume", str(run)]
    ended = killer.run(*command)
    assert ended.code == 0, ended.output
    check_same(run, reference)


@pytest.fixture(scope="module")
def duration_seconds(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> float:
    """How long the small run takes here and now."""
    start = time.monotonic()
    assert killer.run("train", *SMALL_RUN, f"logdir={tmp_path_factory.mktemp('timed') / 'run'}").code == 0
    return time.monotonic() - start


def check_random_kills(killer: Killer, reference: Path, folder: Path, *, duration: float, kills: int) -> None:
    """Kill running processes at ``kills`` moments spread over the run's real duration; every run ends the same."""
    seed = random.SystemRandom().randrange(10**6)
    rng = random.Random(seed)
    runs = 1
    run = folder / "1"
    for _ in range(kills):
        is_killed = False
        while not is_killed:
            delay = rng.uniform(0, duration)
            # A process that dies before it made the folder leaves nothing to resume: then it is a new start.
            is_run = (run / "config.yaml").is_file()
            command = ["resume", str(run)] if is_run else ["train", *SMALL_RUN, f"logdir={run}"]
            ended = killer.signalled(*command, delay_seconds=delay)
            print(f"seed {seed}: {command[0]} of run {runs}, killed after {delay:.3f} s, exit {ended.code}")
            is_killed = ended.code == -signal.SIGKILL
            if not is_killed:  # it was faster than the signal; the next one is for a new run
                assert ended.code == 0, ended.output
                check_same(run, reference)
                runs += 1
                run = folder / str(runs)
    ended = killer.run(*(["resume", str(run)] if (run / "config.yaml").is_file() else command))
    assert ended.code == 0, ended.output
    check_same(run, reference)


def test_kills_at_four_random_moments_change_nothing(
    killer: Killer, reference: Path, duration_seconds: float, tmp_path: Path
) -> None:
    check_random_kills(killer, reference, tmp_path, duration=duration_seconds, kills=4)


@pytest.mark.long
@pytest.mark.parametrize("chain", range(5))
def test_kills_at_twenty_random_moments_change_nothing(
    chain: int, killer: Killer, reference: Path, duration_seconds: float, tmp_path: Path
) -> None:
    check_random_kills(killer, reference, tmp_path, duration=duration_seconds, kills=4)


@pytest.fixture(scope="module")
def killed(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in the middle of learning, to be copied."""
    run = tmp_path_factory.mktemp("killed") / "run"
    ended = killer.run("train", *SMALL_RUN, f"logdir={run}", kill=Kill(_UPDATE, "after", 14))
    assert ended.code == -signal.SIGKILL, ended.output
    return run


@pytest.mark.parametrize("part", FORGOTTEN)
def test_the_comparison_notices_what_was_not_restored(
    part: str, killed: Path, killer: Killer, reference: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    ended = killer.run("resume", str(run), forget=FORGOTTEN[part])
    assert ended.code == 0, ended.output
    assert differences(run, reference) != []


def test_without_forgetting_the_killed_run_is_the_same(
    killed: Path, killer: Killer, reference: Path, tmp_path: Path
) -> None:
    """The other side of the controls above: nothing but the forgotten part makes them differ."""
    run = tmp_path / "run"
    shutil.copytree(killed, run)
    assert killer.run("resume", str(run)).code == 0
    check_same(run, reference)
    assert len(metric_lines(run)) >= 10
