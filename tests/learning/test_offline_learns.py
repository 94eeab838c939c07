"""An agent that never took a step itself, and saw random actions only, plays well."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_dreamer_v3_learns import SMALL

from reverie.cli import main
from reverie.datasets.dataset import Dataset
from reverie.environments.builtin import BEST_RETURN

_ONLINE_ONLY = ("experiment=", "environment.", "training.train_ratio=", "workflow.entropy_scale=")


@pytest.mark.long
def test_random_episodes_are_enough(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    assert main(["record", "builtin_discrete", str(data), "--episodes", "300", "--seed", "4"]) == 0
    settings = [setting for setting in SMALL if not setting.startswith(_ONLINE_ONLY)]
    settings += ["workflow.entropy_scale=2e-2", "training.total_updates=800", "logging.has_tensorboard=false"]
    command = ["train", "experiment=dreamer_offline", *settings, f"buffer.replay.path={data}", f"logdir={run}"]
    assert main(command) == 0
    capsys.readouterr()
    assert main(["eval", str(run), "--task", "builtin_discrete", "--episodes", "50", "--json"]) == 0
    learned = json.loads(capsys.readouterr().out)["return_mean"]
    scores = [episode.score for episode in Dataset(data).index.episodes]
    chance, best = sum(scores) / len(scores), BEST_RETURN["builtin_discrete"]
    assert chance < 0.3 * best
    assert learned > (chance + best) / 2
