"""The experiments of DreamerV1 and DreamerV2 have the published values, written here a second time."""

from __future__ import annotations

from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from reverie.build import phases_of
from reverie.commands.catalogue import CONFIGS


def composed(experiment: str, *overrides: str) -> Any:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("config", overrides=[f"experiment={experiment}", *overrides])


V1 = {
    "size.deter": 200,
    "size.stoch": 30,
    "size.units": 400,
    "training.batch_size": 50,
    "training.batch_length": 50,
    "training.prefill_steps": 5000 // 2,
    "training.train_ratio": 100 * 50 * 50 / (1000 / 2),
    "environment.simulator.action_repeat": 2,
    "workflow.horizon": 15,
    "workflow.free_nats": 3.0,
    "workflow.free_nats_of": "mean",
    "workflow.entropy_scale": 0.0,
    "workflow.exploration.action_noise": 0.3,
    "components.return_computer.lambda_": 0.95,
    "optimizers.model.learning_rate": 6e-4,
    "optimizers.actor.learning_rate": 8e-5,
    "optimizers.critic.learning_rate": 8e-5,
    "optimizers.model.clip": 100.0,
    "optimizers.model.epsilon": 1e-7,
}
V2 = {
    "size.deter": 600,
    "size.stoch": 32,
    "size.classes": 32,
    "size.depth": 48,
    "training.batch_size": 16,
    "training.batch_length": 50,
    "training.prefill_steps": 50_000,
    "training.train_ratio": 16 * 50 / 16,
    "environment.simulator.action_repeat": 4,
    "environment.simulator.max_frames": 27_000 * 4,
    "environment.simulator.is_gray": True,
    "environment.simulator.noops": 30,
    "environment.simulator.sticky": 0.25,
    "workflow.horizon": 15,
    "workflow.reward_transform": "tanh",
    "workflow.free_nats": 0.0,
    "workflow.entropy_scale": 1e-3,
    "workflow.loss_weights.continue": 5.0,
    "workflow.loss_weights.dynamics": 0.8 * 0.1,
    "workflow.loss_weights.representation": 0.2 * 0.1,
    "controller.critic.slow_every": 100,
    "controller.critic.slow_rate": 1.0,
    "optimizers.model.learning_rate": 2e-4,
    "optimizers.actor.learning_rate": 4e-5,
    "optimizers.critic.learning_rate": 1e-4,
    "optimizers.critic.epsilon": 1e-5,
    "optimizers.critic.clip": 100.0,
    "optimizers.model.weight_decay": 1e-6,
}
EXPERIMENTS = {"dreamer_v1_dmc_vision": (V1, 0.99), "dreamer_v2_atari": (V2, 0.999)}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_has_the_published_values(experiment: str) -> None:
    expected, gamma = EXPERIMENTS[experiment]
    config = composed(experiment)
    found = {key: OmegaConf.select(config, key) for key in expected}
    for key, value in expected.items():  # 0.8 * 0.1 has a last digit of its own
        assert found[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key
    assert 1 - 1 / config.workflow.discount_horizon == pytest.approx(gamma)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_the_random_beginning_is_never_longer_than_the_run(experiment: str) -> None:
    for steps, expected in ((100, 100), (10_000_000, EXPERIMENTS[experiment][0]["training.prefill_steps"])):
        prefill, learn, _ = phases_of(composed(experiment, f"training.total_timesteps={steps}"))
        assert (prefill.controller, prefill.duration_steps, learn.duration_steps) == ("random", expected, steps)
        assert learn.controller is None
