"""TD-MPC2 with discrete actions: killed and resumed it is the same run, and its windows keep to episodes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
import torch
from killer import Kill, Killer
from same_run import differences, replay_files

from reverie.cli import main
from reverie.types import Batch, Phase
from reverie.workflows.base import UpdateResult
from reverie.workflows.tdmpc import Tdmpc

SMALL_RUN = (
    *("experiment=tdmpc_cartpole", "size=debug", "environment.num_envs=2"),
    *("training.total_timesteps=64", "training.prefill_steps=48", "training.batch_size=4", "training.train_ratio=6"),
    *("buffer.replay.capacity=80", "buffer.evaluation.capacity=1200", "controller.planner.samples=12"),
    *("evaluation={every_steps: 60, episodes: 2, envs: 2}", "checkpoint.every_steps=16", "logging.every_steps=20"),
    "logging.has_tensorboard=false",
)
"""CartPole: episodes of any length, that end before their time."""

PLANNING = Kill("reverie.components.controllers.mppi:Mppi.__call__", "before", 21)


@pytest.mark.long
def test_a_kill_while_it_plans_changes_nothing(killer: Killer, tmp_path: Path) -> None:
    whole, run = tmp_path / "whole", tmp_path / "run"
    assert killer.run("train", *SMALL_RUN, f"logdir={whole}").code == 0
    ended = killer.run("train", *SMALL_RUN, f"logdir={run}", kill=PLANNING)
    assert ended.code == -signal.SIGKILL, ended.output
    assert differences(run, whole) != []
    ended = killer.run("resume", str(run))
    assert ended.code == 0, ended.output
    assert differences(run, whole) == []
    assert replay_files(run) == replay_files(whole)


def test_windows_never_cross_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the run that they come from can be evaluated."""
    met: list[Batch] = []
    learn = Tdmpc.update

    def watched(self: Tdmpc, batch: Batch, *, phase: Phase) -> UpdateResult:
        met.append(batch)
        return learn(self, batch, phase=phase)

    monkeypatch.setattr(Tdmpc, "update", watched)
    assert main(["train", *SMALL_RUN, f"logdir={tmp_path / 'run'}"]) == 0
    assert not any(batch.is_first[:, 1:].any() for batch in met)
    assert not any(batch.is_last[:, :-1].any() for batch in met)
    assert any(batch.is_terminal[:, -1].any() for batch in met)
    assert {batch.action.dtype for batch in met} == {torch.int64}
    assert set(torch.cat([batch.action for batch in met]).flatten().tolist()) == {0, 1}
    capsys.readouterr()
    assert main(["eval", str(tmp_path / "run"), "--episodes", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 2


LOCKS = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Locks(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_space = spaces.MultiDiscrete([2, 5])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        return np.array([action[0], action[1] / 5], np.float32), float(action[1]), False, False, {}


gymnasium.register("PlannedLocks-v0", entry_point="planned_locks:Locks", max_episode_steps=10)
"""


def test_several_elements_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planned_locks.py").write_text(LOCKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    small = [*SMALL_RUN, "task=gym:planned_locks:PlannedLocks-v0", "workflow.episode_length=10"]
    assert main(["train", *small, "workflow.episodic=false", f"logdir={tmp_path / 'run'}"]) == 0
