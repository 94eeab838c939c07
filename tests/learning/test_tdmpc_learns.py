"""TD-MPC learns small tasks, scored by its last evaluation against random actions and the best return."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from short_runs import learned_return, random_return

from reverie.environments.builtin import BEST_RETURN

CONTINUOUS, DISCRETE = "task=builtin_continuous", "task=builtin_discrete"
SHORT = ("environment.num_envs=16", "workflow.episode_length=20", "training.prefill_steps=320")
EPISODES = ("evaluation.episodes=40",)
"""Twenty or so of each of two tasks, of which one is long."""


def test_planning_with_a_learned_model(tmp_path: Path) -> None:
    """Nine tenths of the way from random actions to the best there is: planning is at home here."""
    small = ("experiment=tdmpc_pendulum", "training.total_timesteps=1600", "training.train_ratio=32")
    learned = learned_return(tmp_path / "tdmpc", CONTINUOUS, *SHORT, *small)
    chance, best = random_return(tmp_path / "chance", CONTINUOUS), BEST_RETURN["builtin_continuous"]
    assert chance < 0.3 * best
    assert learned > chance + 0.75 * (best - chance)


@pytest.mark.long
def test_the_first_tdmpc(tmp_path: Path) -> None:
    """With plans that grow longer and prioritised replay."""
    first = ("components=tdmpc1", "controller=tdmpc1", "workflow=tdmpc1", "training.batch_length=6")
    replay = ("training.sampler=prioritized", "buffer.replay={priority_exponent: 0.6, importance_exponent: 0.4}")
    schedules = ("controller.planner.horizon_schedule.updates=800", "controller.planner.search.min_std.updates=800")
    small = ("experiment=tdmpc_pendulum", "training.total_timesteps=1600", "training.train_ratio=32")
    learned = learned_return(tmp_path / "tdmpc", CONTINUOUS, *SHORT, *small, *first, *replay, *schedules)
    chance, best = random_return(tmp_path / "chance", CONTINUOUS), BEST_RETURN["builtin_continuous"]
    assert learned > chance + 0.75 * (best - chance)


@pytest.mark.long
def test_two_tasks_at_once(tmp_path: Path) -> None:
    """Which do not even want the same: one number of the action, or two. Nine of ten rows are of the second task."""
    tasks = ("components=tdmpc2_multitask", "environment=multitask", "task=multitask_small")
    rates = ("optimizers.model.rate_scales.encoder={vectors: 1.0}", "workflow.episode_length=[20,200]")
    steps = ("environment.num_envs=16", "training.total_timesteps=8000", "training.prefill_steps=1600")
    run = tmp_path / "tdmpc"
    learned_return(run, "experiment=tdmpc_pendulum", *tasks, *rates, *steps, "training.train_ratio=24", *EPISODES)
    chance = tmp_path / "chance"
    random_return(chance, *tasks[1:], *EPISODES)
    learned, random = scores(run), scores(chance)
    best = BEST_RETURN["builtin_continuous"]
    assert random["builtin_continuous"] < 0.3 * best
    assert learned["builtin_continuous"] > 0.45 * best
    assert random["gym_Pendulum-v1"] < -1000
    assert learned["gym_Pendulum-v1"] > -500


def scores(run: Path) -> dict[str, float]:
    """By task, of the last evaluation."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    last = [line for line in lines if "eval/return_mean" in line][-1]
    prefix = "eval/return/"
    return {key.removeprefix(prefix): value for key, value in last.items() if key.startswith(prefix)}


def test_planning_with_discrete_actions(tmp_path: Path) -> None:
    """At a constant rate: the run is too short for one that falls."""
    small = ("experiment=tdmpc_cartpole", "training.total_timesteps=1600", "training.train_ratio=32")
    rates = ("optimizers.model.decay=0", "optimizers.policy.decay=0")
    learned = learned_return(tmp_path / "tdmpc", DISCRETE, *SHORT, *small, *rates)
    chance, best = random_return(tmp_path / "chance", DISCRETE), BEST_RETURN["builtin_discrete"]
    assert chance < 0.3 * best
    assert learned > chance + 0.6 * (best - chance)
