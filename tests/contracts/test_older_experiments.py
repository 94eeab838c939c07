"""The experiments of older forms of Dreamer have the published values, written here a second time."""

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
V3_2023 = {
    "size.deter": 512,
    "size.units": 512,
    "size.layers": 2,
    "size.depth": 32,
    "training.batch_size": 16,
    "training.batch_length": 64,
    "training.sampler": "uniform",
    "workflow.loss_weights.dynamics": 0.5,
    "workflow.loss_weights.representation": 0.1,
    "optimizers.model.learning_rate": 1e-4,
    "optimizers.actor.learning_rate": 3e-5,
    "optimizers.critic.learning_rate": 3e-5,
    "optimizers.model.clip": 1000.0,
    "optimizers.actor.clip": 100.0,
}
V3_2023_DMC = V3_2023 | {
    "training.total_timesteps": 500_000 // 2,
    "training.train_ratio": 512,
    "environment.num_envs": 4,
    "environment.simulator.action_repeat": 2,
    "environment.simulator.observation": "proprio",
}
V3_2023_ATARI = V3_2023 | {
    "training.total_timesteps": 400_000 // 4,
    "training.train_ratio": 1024,
    "runtime.precision": "float32",
    "evaluation.episodes": 100,
    "environment.num_envs": 1,
    "environment.simulator.action_repeat": 4,
    "environment.simulator.size": [64, 64],
    "environment.simulator.is_gray": False,
    "environment.simulator.resize": "area",
    "environment.simulator.sticky": 0.0,
    "environment.simulator.noops": 30,
    "environment.simulator.has_all_actions": False,
}
PREFILLED = {"dreamer_v1_dmc_vision": (V1, 0.99), "dreamer_v2_atari": (V2, 0.999)}
EXPERIMENTS = PREFILLED | {
    "dreamer_v3_2023_dmc_proprio": (V3_2023_DMC, 1 - 1 / 333),
    "dreamer_v3_2023_atari100k": (V3_2023_ATARI, 1 - 1 / 333),
}


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_has_the_published_values(experiment: str) -> None:
    expected, gamma = EXPERIMENTS[experiment]
    config = composed(experiment)
    found = {key: OmegaConf.select(config, key) for key in expected}
    for key, value in expected.items():  # 0.8 * 0.1 has a last digit of its own
        assert found[key] == (pytest.approx(value, rel=1e-9) if isinstance(value, float) else value), key
    assert 1 - 1 / config.workflow.discount_horizon == pytest.approx(gamma)


@pytest.mark.parametrize("experiment", PREFILLED)
def test_the_random_beginning_is_never_longer_than_the_run(experiment: str) -> None:
    for steps, expected in ((100, 100), (10_000_000, PREFILLED[experiment][0]["training.prefill_steps"])):
        prefill, learn, _ = phases_of(composed(experiment, f"training.total_timesteps={steps}"))
        assert (prefill.controller, prefill.duration_steps, learn.duration_steps) == ("random", expected, steps)
        assert learn.controller is None
