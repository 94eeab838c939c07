"""TD-MPC2 learns a small continuous task, scored by its last evaluation against random actions and the best return."""

from __future__ import annotations

from pathlib import Path

from short_runs import learned_return, random_return

from reverie.environments.builtin import BEST_RETURN

TASK = "task=builtin_continuous"
SMALL = (
    *("experiment=tdmpc_pendulum", TASK, "environment.num_envs=16", "workflow.episode_length=20"),
    *("training.total_timesteps=1600", "training.prefill_steps=320", "training.train_ratio=32"),
)


def test_planning_with_a_learned_model(tmp_path: Path) -> None:
    """Nine tenths of the way from random actions to the best there is: planning is at home here."""
    learned = learned_return(tmp_path / "tdmpc", *SMALL)
    chance, best = random_return(tmp_path / "chance", TASK), BEST_RETURN["builtin_continuous"]
    assert chance < 0.3 * best
    assert learned > chance + 0.75 * (best - chance)
