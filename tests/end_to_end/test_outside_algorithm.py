"""An algorithm from outside the package, with its own component and its own YAML, trains without touching Reverie."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from killer import Killer
from same_run import metric_lines, status

MODULE = '''
"""A running mean of the rewards, and nothing else."""

from collections.abc import Mapping

import torch
from torch import nn

from reverie.types import Batch, Phase, Policy
from reverie.workflows.base import UpdateResult, WorldModelWorkflow


class MeanReward(nn.Module):
    def __init__(self, *, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.register_buffer("mean", torch.zeros(()))


class Accountant(WorldModelWorkflow):
    def initialize(self, context) -> None:
        super().initialize(context)
        self._mean = context.components.find("mean_reward", MeanReward)
        self._pushes = context.controllers.find("always_left", AlwaysLeft)

    def policy(self, controller: str | None) -> Policy:
        return self._pushes

    def watch(self, batch: Batch, *, phase: Phase) -> UpdateResult:
        self._mean.mean.lerp_(batch.reward.mean(), self._mean.rate)
        return UpdateResult(metrics={"mean_reward": self._mean.mean, "progress": phase.progress})


class AlwaysLeft:
    def initial(self, num_envs: int) -> dict:
        return {}

    def act(self, carry, obs, *, mode):
        return carry, torch.zeros(len(obs.reward), dtype=torch.int64), {}
'''
FILES = {
    "my_lab/__init__.py": "",
    "my_lab/accountant.py": MODULE,
    "configs/workflow/accountant.yaml": (
        "# @package _global_\nworkflow: {_target_: my_lab.accountant.Accountant}\noptimizers: {}\n"
    ),
    "configs/components/mean_reward.yaml": "mean_reward: {_target_: my_lab.accountant.MeanReward, rate: 0.1}\n",
    "configs/controller/always_left.yaml": "always_left: {_target_: my_lab.accountant.AlwaysLeft}\n",
    "configs/phases/watch.yaml": (
        "# @package training\nphases:\n"
        "  - {name: watch, type: online, buffer: replay, duration_steps: '${training.total_timesteps}',\n"
        "     workflow_hooks: [collect, {watch: {batch: {size: 2, length: 4}}}]}\n"
    ),
    "configs/experiment/accountant.yaml": (
        "# @package _global_\n# Counts rewards.\n"
        "defaults: [{override /workflow: accountant}, {override /components: mean_reward},\n"
        "  {override /controller: always_left}, {override /phases: watch}, {override /size: debug}]\n"
        "experiment: {name: accountant}\ntask: gym_CartPole-v1\ntraining: {total_timesteps: 80}\n"
        "evaluation: {every_steps: 40, episodes: 1, envs: 1}\nlogging: {every_steps: 20, has_tensorboard: false}\n"
        "checkpoint: {every_steps: 20}\n"
    ),
}


def source_digest(repo_root: Path) -> str:
    hasher = hashlib.sha256()
    for path in sorted((repo_root / "src").rglob("*")):
        if path.suffix in (".py", ".yaml"):
            hasher.update(str(path).encode() + path.read_bytes())
    return hasher.hexdigest()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lab")
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def lab_killer(lab: Path, repo_root: Path) -> Iterator[Killer]:
    one = Killer(lab, f"{repo_root / 'src'}{os.pathsep}{lab}")
    yield one
    one.close()


def test_an_outside_algorithm_trains_and_resumes_with_leave(
    lab: Path, lab_killer: Killer, repo_root: Path, tmp_path: Path
) -> None:
    before = source_digest(repo_root)
    run = tmp_path / "run"
    train = ("train", "--config-dir", str(lab / "configs"), "experiment=accountant", f"logdir={run}")
    ended = lab_killer.run(*train)
    assert ended.code == 0, ended.output
    lines = metric_lines(run)
    watched = [line for line in lines if "train/mean_reward" in line]
    assert watched[-1]["agent_steps"] == 80
    assert 0.5 < watched[-1]["train/mean_reward"] <= 1
    # Pushing left only, CartPole falls after eight to ten steps.
    assert {7 < line["eval/return_mean"] < 12 for line in lines if "eval/return_mean" in line} == {True}
    for command in ("resume", "eval"):
        refused = lab_killer.run(command, str(run))
        assert refused.code == 2
        assert "--allow my_lab" in refused.output
        assert refused.output.count("\n") == 1
    ended = lab_killer.run("resume", str(run), "--allow", "my_lab", "training.total_timesteps=120")
    assert ended.code == 0, ended.output
    assert metric_lines(run)[-1]["agent_steps"] == 120
    assert status(run) == "finished"
    assert lab_killer.run("eval", str(run), "--allow", "my_lab", "--episodes", "1").code == 0
    assert source_digest(repo_root) == before


def test_a_mistake_in_an_outside_config_is_a_sentence(lab: Path, lab_killer: Killer, tmp_path: Path) -> None:
    train = ("train", "--config-dir", str(lab / "configs"), "experiment=accountant", f"logdir={tmp_path / 'run'}")
    for override, words in {
        "components.mean_reward.rate=fast": "components.mean_reward.rate",
        "+components.mean_reward.rat=1": "rate",
        "components.mean_reward._target_=my_lab.accountant.MeanRewards": "MeanReward",
        "workflow._target_=my_lab.accountant.AlwaysLeft": "must name a WorldModelWorkflow",
    }.items():
        ended = lab_killer.run(*train, override)
        assert ended.code == 2, ended.output
        assert words in ended.output
        assert "Traceback" not in ended.output
    assert not (tmp_path / "run").exists()
