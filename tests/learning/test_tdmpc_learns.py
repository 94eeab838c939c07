"""TD-MPC2 learns a small continuous and a small discrete task, scored by its last evaluation against random actions and
the best return.
"""

from __future__ import annotations

from pathlib import Path

from short_runs import learned_return, random_return

from reverie.environments.builtin import BEST_RETURN

CONTINUOUS, DISCRETE = "task=builtin_continuous", "task=builtin_discrete"
SHORT = ("environment.num_envs=16", "workflow.episode_length=20", "training.prefill_steps=320")


def test_planning_with_a_learned_model(tmp_path: Path) -> None:
    """Nine tenths of the way from random actions to the best there is: planning is at home here."""
    small = ("experiment=tdmpc_pendulum", "training.total_timesteps=1600", "training.train_ratio=32")
    learned = learned_return(tmp_path / "tdmpc", CONTINUOUS, *SHORT, *small)
    chance, best = random_return(tmp_path / "chance", CONTINUOUS), BEST_RETURN["builtin_continuous"]
    assert chance < 0.3 * best
    assert learned > chance + 0.75 * (best - chance)


def test_planning_with_discrete_actions(tmp_path: Path) -> None:
    """At a constant rate: the run is too short for one that falls."""
    small = ("experiment=tdmpc_cartpole", "training.total_timesteps=1600", "training.train_ratio=32")
    rates = ("optimizers.model.decay=0", "optimizers.policy.decay=0")
    learned = learned_return(tmp_path / "tdmpc", DISCRETE, *SHORT, *small, *rates)
    chance, best = random_return(tmp_path / "chance", DISCRETE), BEST_RETURN["builtin_discrete"]
    assert chance < 0.3 * best
    assert learned > chance + 0.6 * (best - chance)
