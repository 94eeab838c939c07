"""A controller that evolved in the dream of a model, and has never met the task, plays the task."""

from __future__ import annotations

import json
from pathlib import Path

from short_runs import learned_return, random_return

from reverie.environments.builtin import BEST_RETURN

SMALL = (
    "experiment=og_wm_dream",
    *("training.total_timesteps=12000", "buffer.replay.capacity=12000"),
    *("training.lengths.vae_updates=700", "training.lengths.mdn_updates=1000", "training.lengths.dream_steps=2200"),
)


def test_a_controller_evolves_in_its_dream(tmp_path: Path) -> None:
    learned = learned_return(tmp_path / "dreamed", *SMALL)
    chance = random_return(tmp_path / "chance", "task=builtin_survival")
    assert chance < 16
    assert learned > chance + 0.2 * (BEST_RETURN["builtin_survival"] - chance)
    lines = [json.loads(line) for line in (tmp_path / "dreamed/metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["agent_steps"] == 12000, "dreams take no agent steps"
    assert max(line.get("train/generation", 0.0) for line in lines) >= 5
