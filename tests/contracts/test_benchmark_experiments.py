"""The benchmark experiments say what was published, and can be started as a user types them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from reverie.cli import main
from reverie.commands.catalogue import CONFIGS
from reverie.commands.composition import composed
from reverie.commands.train_arguments import chosen_environment
from reverie.configuration import plain
from reverie.orchestration.evaluator import EvaluationConfig
from reverie.orchestration.phases import parse_phases

GUIDE = Path(__file__).resolve().parents[2] / "docs/guides/experiments.md"
SIZE_12M = {"deter": 2048, "hidden": 256, "stoch": 32, "classes": 16, "blocks": 8, "depth": 16, "units": 256}
SIZE_200M = {"deter": 8192, "hidden": 1024, "stoch": 32, "classes": 64, "blocks": 8, "depth": 64, "units": 1024}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A block of the reference's configuration, in our words. Steps are agent steps."""

    task: str
    size: dict[str, int]
    steps: int
    envs: int
    train_ratio: int
    replay: int
    """Rows that the run ever needs, or the million that fits a machine where that is more."""
    simulator: dict[str, Any] = field(default_factory=dict)
    file: str


BLOCKS = {
    "dreamer_atari": Published(
        task="atari_seaquest",
        file="atari",
        size=SIZE_200M,
        steps=51_000_000,
        envs=16,
        train_ratio=32,
        replay=1_000_000,
        simulator={
            **{"size": [96, 96], "is_gray": True, "action_repeat": 4, "sticky": 0.25, "has_all_actions": True},
            **{"noops": 30, "has_max_pool": True, "resize": "bilinear", "lives": "unused", "max_frames": 108_000},
        },
    ),
    "dreamer_atari100k": Published(
        task="atari_alien",
        file="atari100k",
        size=SIZE_200M,
        steps=110_000,
        envs=1,
        train_ratio=256,
        replay=110_000,
        simulator={
            **{"size": [64, 64], "is_gray": False, "action_repeat": 4, "sticky": 0.0, "has_all_actions": False},
            **{"noops": 30, "lives": "unused"},
        },
    ),
    "dreamer_crafter": Published(
        task="crafter_reward",
        file="crafter",
        size=SIZE_200M,
        steps=1_100_000,
        envs=1,
        train_ratio=512,
        replay=1_100_000,
        simulator={"size": 64, "episode_steps": 10_000},
    ),
    "dreamer_dmc_proprio": Published(
        task="dmc_cartpole_swingup",
        file="dmc",
        size=SIZE_12M,
        steps=300_000,
        envs=16,
        train_ratio=512,
        replay=300_000,
        simulator={"observation": "proprio", "action_repeat": 2},
    ),
    "dreamer_dmc_vision": Published(
        task="dmc_walker_walk",
        file="dmc_vision",
        size=SIZE_12M,
        steps=600_000,
        envs=16,
        train_ratio=512,
        replay=600_000,
        simulator={"observation": "vision", "action_repeat": 2, "size": 64, "camera": -1, "frame_stack": 1},
    ),
    "dreamer_memorymaze": Published(
        task="memorymaze_11x11",
        file="memorymaze",
        size=SIZE_200M,
        steps=100_000_000,
        envs=16,
        train_ratio=32,
        replay=1_000_000,
        simulator={"positions": False, "episode_steps": None},
    ),
    "dreamer_minecraft": Published(
        task="minecraft_diamond",
        file="minecraft",
        size=SIZE_200M,
        steps=100_000_000,
        envs=16,
        train_ratio=32,
        replay=1_000_000,
        simulator={
            **{"image_size": 64, "break_speed": 100.0, "episode_steps": 36_000, "pitch_limit": 60.0},
            "sticky_jump": 10,
        },
    ),
    "dreamer_bsuite": Published(
        task="bsuite_deep_sea_3",
        file="bsuite",
        size=SIZE_200M,
        steps=10_000 * (16 + 1),  # episodes of 16 actions, and the last observation of each
        envs=1,
        train_ratio=1024,
        replay=10_000 * (16 + 1),
    ),
    "dreamer_minigrid": Published(  # not published: our choice
        task="minigrid_Empty-8x8-v0",
        file="minigrid",
        size=SIZE_12M,
        steps=1_100_000,
        envs=16,
        train_ratio=64,
        replay=1_100_000,
        simulator={"observation": "symbolic"},
    ),
}

HYPERPARAMETERS: dict[str, Any] = {
    "workflow": {
        **{"horizon": 15, "discount_horizon": 333, "free_nats": 1.0, "entropy_scale": 3e-4, "slow_regularizer": 1.0},
        "replay_lambda": 0.95,
        "loss_weights": {
            **{"reconstruction": 1.0, "reward": 1.0, "continue": 1.0, "dynamics": 1.0, "representation": 0.1},
            **{"policy": 1.0, "value": 1.0, "replay_value": 0.3},
        },
    },
    "optimizers": {
        "model": {
            **{"learning_rate": 4e-5, "warmup_updates": 1000, "decay": 0.0, "clip": 0.3, "min_weight_norm": 1e-3},
            **{"rms_decay": 0.999, "momentum": 0.9, "epsilon": 1e-20},
        },
    },
    "training": {"batch_size": 16, "batch_length": 64},
    "size": {"bins": 255},
}
"""The same in all blocks."""


def config_of(experiment: str, *overrides: str) -> dict[str, Any]:
    """As `reverie train experiment=... task=...` composes it, without the parts that need the spaces of the task."""
    config = composed(BLOCKS[experiment].task, [f"experiment={experiment}", *overrides])
    return {str(key): plain(config[key]) for key in config if key not in ("components", "controller")}


def differences(given: Any, wanted: Any, path: str = "") -> list[str]:
    """The keys of ``wanted`` that ``given`` has otherwise."""
    if isinstance(wanted, dict):
        return [text for key, value in wanted.items() for text in differences(given[key], value, f"{path}.{key}")]
    return [] if given == wanted else [f"{path}: {given} and not {wanted}"]


@pytest.mark.parametrize("experiment", BLOCKS)
def test_an_experiment_has_the_published_values(experiment: str) -> None:
    block, config = BLOCKS[experiment], config_of(experiment)
    wanted = {
        "experiment": {"name": experiment, "device": "auto"},
        "task": block.task,
        "size": block.size,
        "training": {"total_timesteps": block.steps, "train_ratio": block.train_ratio, "ratio_from": "ready"},
        "environment": {"num_envs": block.envs, "simulator": block.simulator},
        "buffer": {"replay": {"capacity": block.replay}},
    }
    assert differences(config, wanted) == []
    assert differences(config, HYPERPARAMETERS) == []
    assert chosen_environment([f"experiment={experiment}"], None) == block.file
    learn, final = parse_phases(config["training"]["phases"])
    assert (learn.duration_steps, learn.train_ratio) == (block.steps, block.train_ratio)
    assert [hook.batch.windows_needed for hook in learn.hooks if hook.batch is not None] == [1024]
    assert final.has_hook("evaluate")


@pytest.mark.parametrize("experiment", BLOCKS)
def test_debug_settings_combine_with_an_experiment(experiment: str) -> None:
    config = config_of(experiment, "size=debug", "runtime=debug", "training.total_timesteps=3000")
    assert config["size"]["deter"] == 8
    assert config["runtime"]["finds_anomalies"] is True
    learn, _ = parse_phases(config["training"]["phases"])
    assert learn.duration_steps == 3000
    assert config["environment"]["num_envs"] == BLOCKS[experiment].envs


@pytest.mark.parametrize("experiment", BLOCKS)
def test_the_processor_can_be_chosen(experiment: str) -> None:
    assert config_of(experiment, "runtime=cpu")["experiment"]["device"] == "cpu"


@pytest.mark.parametrize("experiment", BLOCKS)
def test_a_run_is_evaluated_and_saved_before_its_end(experiment: str) -> None:
    config = config_of(experiment)
    evaluation = EvaluationConfig(**config["evaluation"])
    assert config["checkpoint"]["every_steps"] * 4 <= BLOCKS[experiment].steps
    assert evaluation.every_steps is None or evaluation.every_steps < BLOCKS[experiment].steps


def test_atari100k_is_scored_at_its_hundred_thousandth_step() -> None:
    """By the 2023 protocol: 100 episodes."""
    evaluation = config_of("dreamer_atari100k")["evaluation"]
    assert (evaluation["every_steps"], evaluation["episodes"]) == (100_000, 100)


def documented() -> dict[str, list[str]]:
    """The rows of the guide's first table by experiment."""
    lines = GUIDE.read_text(encoding="utf-8").partition("| experiment | task")[2].partition("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]
    return {name: cells for name, *cells in rows}


def test_the_guide_lists_every_benchmark_with_its_values() -> None:
    rows = documented()
    assert set(rows) == set(BLOCKS)
    for name, (task, size, envs, ratio, steps, frames, _) in rows.items():
        config = composed(task, [f"experiment={name}"])
        repeat = config.environment.simulator.get("action_repeat", 1)
        total = config.training.total_timesteps
        wanted = [config.environment.num_envs, config.training.train_ratio, total, total * repeat]
        assert [int(cell.replace(",", "")) for cell in (envs, ratio, steps, frames)] == wanted, name
        assert config.size == composed(task, [f"experiment={name}", f"size={size}"]).size, name
        default = OmegaConf.load(CONFIGS / "experiment" / f"{name}.yaml")
        assert OmegaConf.select(default, "task") == task


def test_minecraft_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REVERIE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert main(["train", "experiment=dreamer_minecraft", "size=debug", "runtime=debug"]) == 2
    assert "run `reverie env add minecraft`" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_suite_without_a_length_of_its_own_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "experiment=dreamer_bsuite", "task=gym_CartPole-v1"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("reverie: the suite gym does not say how long a run on gym_CartPole-v1 is: set ")
    assert said.count("\n") == 1
