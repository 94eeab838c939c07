"""DreamerV1, DreamerV2 and DreamerV3 of 2023 each learn a small task, by configuration of the one workflow.

Every score is that of the last evaluation, compared with random actions and with the best return there is.
"""

from __future__ import annotations

from pathlib import Path

from short_runs import learned_return, random_return

from reverie.environments.builtin import BEST_RETURN

SMALL = (
    *("experiment=dreamer_cartpole", "environment.num_envs=16", "size=tiny", "size.hidden=64"),
    *(f"components.{name}.vectors.layers=1" for name in ("encoder", "decoder")),
    *(f"{name}.layers=1" for name in ("components.reward_head", "controller.actor", "controller.critic.head")),
    *("training.total_timesteps=5000", "training.batch_size=32", "training.batch_length=4", "training.train_ratio=16"),
    *("workflow.horizon=4", "workflow.discount_horizon=10"),
    *("optimizers.model.warmup_updates=0", "optimizers.model.decay=0"),
    *(f"optimizers.{name}.learning_rate=3e-3" for name in ("model", "actor", "critic")),
    # The first gradients are by far the largest: remembered for a thousand updates, they would scale the whole run.
    *(f"optimizers.{name}.square_decay=0.98" for name in ("model", "actor", "critic")),
)
"""Shallow networks and short dreams: hundreds of updates in half a minute of one processor."""

CONTINUOUS = (
    "task=builtin_continuous",
    # A step moves by a tenth: at weight 1 and with the published free nats, no loss would ask where to.
    *("workflow.loss_weights.reconstruction=100", "workflow.loss_weights.reward=10", "workflow.free_nats=0"),
)
DISCRETE = ("task=builtin_discrete", "workflow.loss_weights.reconstruction=10")


def form(name: str) -> tuple[str, ...]:
    return tuple(f"{group}=dreamer_{name}" for group in ("components", "controller", "workflow"))


def test_v1_learns_through_the_dynamics(tmp_path: Path) -> None:
    """A policy that begins with a deviation of 5 stays at the borders for longer than this run takes."""
    begin = "controller.actor.continuous.init_stddev=1.0"
    expect_learning(tmp_path, *form("v1"), *SMALL, *CONTINUOUS, begin)


def test_v2_learns_by_reinforce_from_a_target_critic(tmp_path: Path) -> None:
    """Random actions first and a large bonus for entropy: a policy that is sure before the model is good stays so."""
    begin = ("phases=prefilled", "training.prefill_steps=1000", "training.total_timesteps=6000")
    often = ("controller.critic.slow_every=20", "workflow.entropy_scale=0.12")
    expect_learning(tmp_path, *form("v2"), *SMALL, *DISCRETE, *begin, *often)


def test_v3_of_2023_learns_through_the_dynamics(tmp_path: Path) -> None:
    expect_learning(tmp_path, *form("v3_2023"), *SMALL, *CONTINUOUS)


def expect_learning(folder: Path, *overrides: str) -> None:
    """Two fifths of the way from chance to the best return."""
    task = next(word for word in overrides if word.startswith("task=")).removeprefix("task=")
    learned, chance = learned_return(folder / "dreamer", *overrides), random_return(folder / "chance", f"task={task}")
    assert chance < 3
    assert learned > chance + 0.4 * (BEST_RETURN[task] - chance)
