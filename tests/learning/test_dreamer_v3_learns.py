"""DreamerV3 learns four small tasks: discrete and continuous actions, pictures, and a cue that must be remembered.

Every score is that of the last evaluation, compared with random actions and with the best return there is.
"""

from __future__ import annotations

from pathlib import Path

from short_runs import learned_return, random_return

from reverie.environments.builtin import BEST_RETURN

SMALL = (
    *("experiment=dreamer_cartpole", "environment.num_envs=16", "size=tiny", "size.hidden=64"),
    *(f"components.{name}.vectors.layers=1" for name in ("encoder", "decoder")),
    *("controller.actor.layers=1", "controller.critic.head.layers=1"),
    "components.representation_learner.prior_layers=1",
    *("training.batch_size=32", "training.batch_length=4", "training.train_ratio=16"),
    *("workflow.horizon=3", "workflow.discount_horizon=10", "workflow.free_nats=2"),
    *("workflow.loss_weights.reconstruction=10", "workflow.entropy_scale=1e-2"),
    *("optimizers.model.learning_rate=3e-3", "optimizers.model.warmup_updates=20", "optimizers.model.decay=0"),
    # The first gradients are by far the largest: remembered for a thousand updates, they would scale the whole run.
    "optimizers.model.rms_decay=0.98",
)
"""Shallow networks and short dreams: hundreds of updates in half a minute of one processor."""


def assert_learned(learned: float, *, chance: float, best: float) -> None:
    """Half of the way from random actions to the best there is."""
    assert chance < 0.3 * best
    assert learned > (chance + best) / 2


def test_discrete_actions(tmp_path: Path) -> None:
    task = "task=builtin_discrete"
    learned = learned_return(
        tmp_path / "dreamer", *SMALL, task, "training.total_timesteps=6500", "workflow.entropy_scale=2e-2"
    )
    chance = random_return(tmp_path / "chance", task)
    assert_learned(learned, chance=chance, best=BEST_RETURN["builtin_discrete"])


def test_continuous_actions(tmp_path: Path) -> None:
    task = "task=builtin_continuous"
    learned = learned_return(
        tmp_path / "dreamer", *SMALL, task, "training.total_timesteps=5000", "workflow.entropy_scale=3e-3"
    )
    chance = random_return(tmp_path / "chance", task)
    assert_learned(learned, chance=chance, best=BEST_RETURN["builtin_continuous"])


def test_pictures(tmp_path: Path) -> None:
    """On four fields: two objects in sixteen places take longer to tell apart than a quick test has."""
    task = ("task=builtin_image", "environment.simulator.fields=2", "environment.simulator.size=16")
    learned = learned_return(
        tmp_path / "dreamer",
        *(
            *SMALL,
            *task,
            "size.stoch=8",
            "size.depth=8",
            "components.encoder.images.kernel=3",
            "components.decoder.images.kernel=3",
        ),
        *("training.total_timesteps=6500", "training.batch_size=16", "training.batch_length=3"),
        *("training.train_ratio=6", "optimizers.model.learning_rate=2e-3", "workflow.entropy_scale=3e-2"),
    )
    chance = random_return(tmp_path / "chance", *task)
    assert_learned(learned, chance=chance, best=BEST_RETURN["builtin_image"] + 2)  # the target is two steps nearer


def test_a_cue_is_remembered(tmp_path: Path) -> None:
    """The question shows nothing of the cue, so that any policy without memory is right once in four: -0.5."""
    learned = learned_return(
        tmp_path / "dreamer",
        *(*SMALL, "task=builtin_memory", "environment.simulator.delay=0", "training.total_timesteps=15000"),
        *("training.batch_size=48", "training.train_ratio=12", "workflow.horizon=1"),
        *("size.deter=256", "size.classes=4", "components.reward_head.units=128", "workflow.loss_weights.reward=10"),
    )
    assert learned > 0.25
