"""Every packaged YAML file composes, instantiates and, at the smallest size, runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hydra import compose, initialize_config_dir
from made_episodes import write_dataset
from omegaconf import OmegaConf

from reverie.build import assemble, assemble_orchestrator, assemble_workflow, phases_of
from reverie.commands.catalogue import CONFIGS, GROUPS, options
from reverie.configuration import check_sections, plain
from reverie.environments.suites import suite_of
from reverie.orchestration.display import make_display
from reverie.orchestration.parts import check_phases
from reverie.runtime.device import RuntimeConfig, prepare_torch
from reverie.runtime.rng import RandomStreams
from reverie.targets import located
from reverie.types import ReverieError, Space, Spaces
from reverie.workflows.base import WorldModelWorkflow
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_optimizers import trainable_parameters

CPU, META = torch.device("cpu"), torch.device("meta")
FILES = sorted(
    (folder.name, file.stem) for folder in CONFIGS.iterdir() if folder.is_dir() for file in folder.glob("*.yaml")
)
EXPERIMENTS = sorted(options("experiment"))
SIZES = sorted(options("size"))

NOT_HERE = {"dreamer_minecraft", "dreamer_offline", "tdmpc_multitask_offline"}
"""The game cannot be installed everywhere; test_minecraft.py plays against a stand-in. The others take no steps."""
SHORT_EPISODES = {
    "atari": ("environment.simulator.max_frames=40",),
    "crafter": ("environment.simulator.episode_steps=10",),
    "dmc": ("environment.simulator.action_repeat=100",),
    "memorymaze": ("environment.simulator.episode_steps=10",),
    "multitask": ("environment.simulator.options={action_repeat: 100}",),
}
"""Overrides for suites whose episodes take long, so that the evaluation at the end does not."""

OLDER_FORMS = ("dreamer_v1", "dreamer_v2", "dreamer_v3_2023")

PUBLISHED = {
    "1m": (0.69, 0.77, 0.64),
    "12m": (10.5, 11.8, 9.7),
    "25m": (23.5, 26.4, 21.8),
    "50m": (41.7, 46.9, 38.6),
    "100m": (93.5, 105.3, 86.6),
    "200m": (166.0, 186.9, 153.8),
    "400m": (372.9, 420.1, 345.5),
}
"""Millions of parameters as published, the slow critic excluded, for the three kinds of task below."""

TDMPC2 = {
    "tdmpc2_1m": 1.2,
    "tdmpc2_5m": 5.0,
    "tdmpc2_19m": 18.1,
    "tdmpc2_48m": 47.2,
    "tdmpc2_317m": 312.6,
}
"""Millions of parameters for 24 numbers seen and 6 done, target critics and the probe excluded."""

MULTITASK = {
    "tdmpc2_1m": 1.4,
    "tdmpc2_5m": 5.4,
    "tdmpc2_19m": 19.0,
    "tdmpc2_48m": 48.8,
    "tdmpc2_317m": 317.4,
}
"""The same for the published set of eighty tasks, with embeddings of 96 numbers: 39 numbers seen and 6 done."""

EIGHTEEN, SIX = Space(shape=(), dtype="int64", classes=18), Space(shape=(6,), dtype="float32")
TASKS = (
    Spaces(obs={"image": Space(shape=(64, 64, 3), dtype="uint8")}, action=EIGHTEEN),
    Spaces(obs={"image": Space(shape=(96, 96, 1), dtype="uint8")}, action=EIGHTEEN),
    Spaces(obs={"vector": Space(shape=(24,), dtype="float32")}, action=SIX),
)


def composed(*overrides: str) -> Any:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", overrides=list(overrides))
    OmegaConf.set_struct(config, False)
    return config


@pytest.fixture(autouse=True)
def torch_settings() -> Iterator[None]:
    yield
    torch.autograd.set_detect_anomaly(False)
    torch.set_flush_denormal(False)
    torch.set_deterministic_debug_mode("default")


def test_the_folders_are_the_groups() -> None:
    assert {group for group, _ in FILES} == set(GROUPS)
    older = {"v1", "v2", "v2_dmc", "2023_s", "2023_m", "2023_l", "2023_xl"}
    world_models = {"og_wm", "og_wm_doom", "og_wm_laptop", "og_wm_small"}
    assert set(SIZES) == {*PUBLISHED, *TDMPC2, *older, "tdmpc1", *world_models, "debug", "tiny", "small"}


@pytest.mark.parametrize(("group", "name"), FILES)
def test_every_file_composes_with_the_defaults(group: str, name: str) -> None:
    config = composed(f"{group}={name}")
    resolved = plain(OmegaConf.masked_copy(config, [key for key in config if key not in ("components", "controller")]))
    check_sections(resolved)
    assert options(group)[name], "the first comment tells what the file is for"


def long_dataset(folder: Path) -> Path:
    """Rows enough for a batch of the usual size."""
    return write_dataset(folder / "data", TASKS[2], lengths=(60, 60))


# The files of the group `environment` are for tasks of their own: test_suites.py asks each of them.
@pytest.mark.parametrize(
    ("group", "name"), [(g, n) for g, n in FILES if g not in ("environment", "experiment", "size", "runtime")]
)
def test_every_part_is_used_by_an_experiment_or_stands_in_for_the_default(
    group: str, name: str, tmp_path: Path
) -> None:
    """A file that no combination can run is dead. Parts that belong together are chosen together."""
    if name in ("tdmpc2", "pretrained"):
        return expect_parts("tdmpc_pendulum", f"{group}={name}")
    if name == "tdmpc1":
        return expect_parts("tdmpc_pendulum", *(f"{part}=tdmpc1" for part in ("components", "controller", "workflow")))
    if name == "tdmpc2_multitask":
        return expect_parts("tdmpc_multitask", "task=multitask_small", "environment.simulator.options.action_repeat=1")
    together = {"random_policy", "none", "collect_only"}
    experiment = "random_cartpole" if name in together else "dreamer_cartpole"
    chosen = [f"{group}={name}"]
    if name in ("og_wm", "og_wm_dream"):
        experiment = "og_wm_dream"
    if name in OLDER_FORMS:
        # DreamerV1 explores by noise, which needs continuous actions.
        chosen = [f"{part}={name}" for part in ("components", "controller", "workflow")] + ["task=gym_Pendulum-v1"]
    if name == "offline":
        experiment, chosen = "dreamer_offline", [f"{group}={name}", f"buffer.replay.path={long_dataset(tmp_path)}"]
    return expect_parts(experiment, *chosen)


def expect_parts(experiment: str, *chosen: str) -> None:
    config = composed(f"experiment={experiment}", *chosen, "size=debug")
    parts = assemble(config, device=CPU, allow=None)
    check_phases(phases_of(config), parts)
    parts.train_env.close()
    parts.evaluator.close()


SHORT_LEGS = (
    *("training.lengths.vae_updates=2", "training.lengths.mdn_updates=2"),
    "controller.population={population: 4, episodes: 1, mean_every: 1, mean_episodes: 1}",
)
OF_EXPERIMENT = {
    "og_wm_carracing": (*SHORT_LEGS, "training.lengths.evolve_steps=10", "environment.simulator.episode_frames=8"),
    "og_wm_dream": (*SHORT_LEGS, "training.lengths.dream_steps=10"),
    # Looking for anomalies doubles the time of many small operations.
    "dreamer_v3_2023": ("runtime.finds_anomalies=false",),
    "tdmpc": (
        *("controller.planner.samples=16", "controller.planner.elites=4", "controller.planner.proposals=2"),
        "runtime.finds_anomalies=false",
    ),
}
"""More overrides, by how the experiment's name begins."""


SLOW = ("tdmpc_metaworld", "tdmpc_dmc_vision", "tdmpc_atari100k", "dreamer_memorymaze", "dreamer_v3_2023_atari100k")
"""Ten seconds each: their simulators and their algorithm are among the others."""
RUN_HERE = [
    pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in EXPERIMENTS if name not in NOT_HERE
]


def test_every_part_may_stand_in_a_stored_config() -> None:
    """Or no run that has it could be resumed."""
    lines = [line for file in CONFIGS.rglob("*.yaml") for line in file.read_text(encoding="utf-8").splitlines()]
    targets = {line.split()[1] for line in lines if line.strip().startswith("_target_:")}
    assert len(targets) > 80
    for target in targets:
        assert located(target, path="a config", allow=())


@pytest.mark.parametrize("experiment", RUN_HERE)
def test_every_experiment_runs_a_few_steps(experiment: str, tmp_path: Path) -> None:
    suite = suite_of(composed(f"experiment={experiment}").task)
    config = composed(
        f"experiment={experiment}",
        *("runtime=debug", "size=debug", "experiment.device=cpu"),
        *("training.total_timesteps=20", "training.train_ratio=2", "training.batch_size=2", "training.batch_length=4"),
        *("environment.num_envs=1", "evaluation.every_steps=null", "evaluation.episodes=1"),
        *("buffer.replay.capacity=100", "buffer.evaluation.capacity=100"),
        *SHORT_EPISODES.get(suite, ()),
        *next((more for begin, more in OF_EXPERIMENT.items() if experiment.startswith(begin)), ()),
    )
    prepare_torch(RuntimeConfig(**plain(config.runtime)), torch.device("cpu"))
    parts = assemble(config, device=CPU, allow=())  # as strictly as when it is resumed
    orchestrator = assemble_orchestrator(config, parts, folder=tmp_path, display=make_display())
    orchestrator.begin()
    assert orchestrator.run() == 0
    orchestrator.close()
    counters = orchestrator.counters()
    assert counters.agent_steps >= 20
    has_updates = any(hook.kind == "update" for phase in phases_of(config) for hook in phase.hooks)
    assert (counters.updates > 0) == has_updates
    assert (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").strip()


def test_the_offline_experiment_runs_a_few_updates(tmp_path: Path) -> None:
    config = composed(
        *("experiment=dreamer_offline", f"buffer.replay.path={long_dataset(tmp_path)}", "training.total_updates=3"),
        *("runtime=debug", "size=debug", "experiment.device=cpu", "training.batch_size=2", "training.batch_length=4"),
    )
    prepare_torch(RuntimeConfig(**plain(config.runtime)), torch.device("cpu"))
    parts = assemble(config, device=CPU, allow=None)
    orchestrator = assemble_orchestrator(config, parts, folder=tmp_path, display=make_display())
    orchestrator.begin()
    assert orchestrator.run() == 0
    orchestrator.close()
    assert (orchestrator.counters().agent_steps, orchestrator.counters().updates) == (0, 3)


def dreamer_on_meta(size: str, spaces: Spaces) -> Dreamer:
    workflow = on_meta("dreamer_cartpole", size, spaces)
    assert isinstance(workflow, Dreamer)
    return workflow


def on_meta(experiment: str, size: str, spaces: Spaces) -> WorldModelWorkflow:
    """Shapes without memory: the largest preset would take gigabytes."""
    config = composed(f"experiment={experiment}", f"size={size}")
    with META:
        return assemble_workflow(
            config, spaces=spaces, train_env=None, rng=RandomStreams(0, device=CPU), device=META, allow=None
        )


def parameter_count(workflow: WorldModelWorkflow) -> int:
    return sum(parameter.numel() for parameter in trainable_parameters(workflow.modules()).values())


@pytest.mark.parametrize("size", PUBLISHED)
def test_the_presets_have_the_published_number_of_parameters(size: str) -> None:
    digits = 2 if size == "1m" else 1
    millions = [parameter_count(dreamer_on_meta(size, spaces)) / 1e6 for spaces in TASKS]
    assert tuple(round(number, digits) for number in millions) == PUBLISHED[size]


@pytest.mark.parametrize("size", TDMPC2)
def test_the_presets_of_tdmpc2_have_the_published_number_of_parameters(size: str) -> None:
    workflow = on_meta("tdmpc_pendulum", size, TASKS[2])
    assert round(agent_count(workflow) / 1e6, 1) == TDMPC2[size]


def agent_count(workflow: WorldModelWorkflow) -> int:
    """Without the probe, which is for people."""
    return parameter_count(workflow) - sum(one.numel() for one in workflow.modules()["probe"].parameters())


@pytest.mark.parametrize("size", MULTITASK)
def test_the_presets_have_the_published_number_of_parameters_for_eighty_tasks(size: str) -> None:
    eighty = {
        "state": Space(shape=(39,), dtype="float32"),
        "task": Space(shape=(), dtype="int64", classes=80),
        "action_mask": Space(shape=(6,), dtype="float32"),
    }
    workflow = on_meta("tdmpc_multitask", size, Spaces(obs=eighty, action=SIX))
    assert round(agent_count(workflow) / 1e6, 1) == MULTITASK[size]


@pytest.mark.parametrize(
    ("experiment", "size"), [("tdmpc_pendulum", "12m"), ("dreamer_cartpole", "tdmpc2_5m")], ids=str
)
def test_a_size_of_another_algorithm_is_refused_in_a_sentence(experiment: str, size: str) -> None:
    with pytest.raises(ReverieError, match=r"reads `size\.\w+`, which this size does not have"):
        on_meta(experiment, size, TASKS[2])


@pytest.mark.parametrize("spaces", TASKS)
def test_the_small_sizes_grow_in_order(spaces: Spaces) -> None:
    counts = [parameter_count(dreamer_on_meta(size, spaces)) for size in ("debug", "tiny", "small", "1m")]
    assert counts == sorted(counts)
    assert counts[0] < 20_000


def test_the_published_parts_of_the_default_preset() -> None:
    modules = dreamer_on_meta("200m", TASKS[0]).modules()
    names = ("encoder", "representation_learner", "decoder", "reward_head", "continue_head", "actor", "critic")
    counts = [sum(one.numel() for one in modules[name].parameters() if one.requires_grad) / 1e6 for name in names]
    # The published numbers were rounded twice.
    assert counts == pytest.approx([3.5, 95.5, 20.3, 10.8, 10.5, 12.6, 12.9], abs=0.06)
