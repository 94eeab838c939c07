"""The composition root: configuration in, objects out. All wiring happens here and nothing else does."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_type_hints

import torch
from omegaconf import DictConfig

from reverie.buffers.base import Buffer
from reverie.configuration import Allow, check_node, instantiate, plain, section, unknown_key
from reverie.environments.base import Environment
from reverie.environments.parallel.batch_simulator import BatchSimulator
from reverie.environments.parallel.batched import BatchedEnvironments
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.environments.vector import VectorEnvironment
from reverie.node_walk import is_node
from reverie.orchestration.black_box import BlackBox
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.orchestration.display import Display
from reverie.orchestration.evaluator import EVALUATION_BUFFER, EvaluationConfig, Evaluator
from reverie.orchestration.logger import Logger, LoggingConfig, make_sinks
from reverie.orchestration.model_review import ModelReview
from reverie.orchestration.orchestrator import Orchestrator
from reverie.orchestration.parts import Parts
from reverie.orchestration.phases import PhaseSpec, parse_phases
from reverie.orchestration.update_guard import UpdateGuard
from reverie.runtime.device import RuntimeConfig
from reverie.runtime.precision import Precision
from reverie.runtime.rng import RandomStreams, derived_seed
from reverie.targets import located
from reverie.types import ReverieError, Space, Spaces, require
from reverie.workflows.base import WorldModelWorkflow
from reverie.workflows.context import WorkflowContext, WorldModelComponents
from reverie.workflows.controllers import ControllerManager


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentConfig:
    name: str
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ReverieError(f"`experiment.seed` must be 0 or more, got {self.seed}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    total_timesteps: int
    """Agent steps. Phases refer to this and to the next four through ``${training.*}``."""
    train_ratio: float
    ratio_from: str
    batch_size: int
    batch_length: int
    phases: list[Any]
    sampler: Any = None
    """A name, or names with fractions; checked where the phases are parsed."""
    crosses_episodes: bool = True
    prefill_steps: int | None = None
    """Agent steps with random actions before learning begins, where the phases have such a beginning."""
    resume_path: str | None = None
    """A run folder, or a checkpoint in one, whose whole state this run begins with."""
    max_skipped_updates: int = 5
    """The run stops when this many updates in a row were skipped because a loss or gradient was not finite."""

    def __post_init__(self) -> None:
        require("training.max_skipped_updates", self.max_skipped_updates, at_least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentConfig:
    """The section without its ``simulator``, which is the ``_target_`` node of one environment."""

    num_envs: int = 1
    in_workers: bool = True
    """Whether simulators live in worker processes, which can die and be started again without ending the run."""
    num_workers: int | None = None
    """Worker processes that share the simulators; null makes as many as there are processors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeConfig:
    """Read by the other sections through ``${size.*}``; checked here so that a wrong key or type is found."""

    deter: int
    hidden: int
    stoch: int
    classes: int
    blocks: int
    depth: int
    units: int
    bins: int
    layers: int | None = None
    """Of the heads, where a size has a say in it (the 2023 form of DreamerV3); null leaves it to the components."""
    vector_units: int | None = None
    """Of the layers that read and reconstruct vectors, in the same case; null makes them like the others."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise ReverieError(f"`size.{name}` must be at least 1, got {value}.")
        if self.deter % self.blocks:
            raise ReverieError(f"`size.deter` ({self.deter}) must be a multiple of `size.blocks` ({self.blocks}).")
        if self.classes > 256:
            raise ReverieError(
                f"`size.classes` must be at most 256, got {self.classes}: replay keeps a byte per latent."
            )
        if self.bins < 3:
            raise ReverieError(f"`size.bins` must be at least 3, got {self.bins}.")


def assemble(config: DictConfig, *, device: torch.device, allow: Allow) -> Parts:
    """Everything a training run needs below the loop. Fills in ``config._dims`` on the way."""
    experiment = section(ExperimentConfig, config.experiment, path="experiment")
    evaluation = section(EvaluationConfig, config.evaluation, path="evaluation")
    section(SizeConfig, config.size, path="size")
    rng = RandomStreams(experiment.seed, device=device)
    train_env = environments(config, num_envs=None, seed=derived_seed(experiment.seed, "train") % 2**31, allow=allow)
    with ExitStack() as stack:
        stack.callback(train_env.close)  # its processes must not outlive a mistake in what follows
        parts = _assembled_around(train_env, config, evaluation=evaluation, rng=rng, device=device, allow=allow)
        stack.pop_all()
    return parts


def _assembled_around(
    train_env: VectorEnvironment,
    config: DictConfig,
    *,
    evaluation: EvaluationConfig,
    rng: RandomStreams,
    device: torch.device,
    allow: Allow,
) -> Parts:
    streams = {EVALUATION_BUFFER: min(evaluation.envs, evaluation.episodes)}
    buffers = {
        str(name): make_buffer(
            config, str(name), num_streams=streams.get(str(name), train_env.num_envs), rng=rng, allow=allow
        )
        for name in config.buffer
    }
    workflow = assemble_workflow(
        config, spaces=train_env.spaces, train_env=train_env, rng=rng, device=device, allow=allow
    )
    evaluator = Evaluator(
        lambda: evaluation_environment(config, episodes=evaluation.episodes, allow=allow),
        episodes=evaluation.episodes,
        seed=plain(config.experiment)["seed"],
        device=device,
        buffer=buffers.get(EVALUATION_BUFFER),
    )
    return Parts(workflow=workflow, buffers=buffers, train_env=train_env, evaluator=evaluator, rng=rng, device=device)


def make_buffer(config: DictConfig, name: str, *, num_streams: int, rng: RandomStreams, allow: Allow) -> Buffer:
    """The empty buffer that `buffer.NAME` describes."""
    path, stream = f"buffer.{name}", rng.stream(f"replay/{name}")
    return instantiate(config.buffer[name], path=path, allow=allow, num_streams=num_streams, rng=stream)


def evaluation_environment(config: DictConfig, *, episodes: int, allow: Allow) -> VectorEnvironment:
    """No more environments than episodes. They are reset with a seed of their own before they are used."""
    evaluation = section(EvaluationConfig, config.evaluation, path="evaluation")
    return environments(config, num_envs=min(evaluation.envs, episodes), seed=0, allow=allow)


def environments(config: DictConfig, *, num_envs: int | None, seed: int, allow: Allow) -> VectorEnvironment:
    """``num_envs`` copies of the configured task; None takes the number from the configuration."""
    given = plain(config.environment)
    node = given.pop("simulator", None)
    environment = section(EnvironmentConfig, given, path="environment")
    count = environment.num_envs if num_envs is None else num_envs
    if is_node(node):
        target = located(node["_target_"], path="environment.simulator._target_", allow=allow)
        if isinstance(target, type) and issubclass(target, BatchSimulator):
            path = "environment.simulator"
            return BatchedEnvironments(
                lambda given: instantiate(node, path=path, allow=allow, num_envs=count, seed=given), seed=seed
            )
    maker = simulator_maker(node, allow=allow)
    # An interpreter of its own is a process of its own, whatever was asked for.
    in_workers = environment.in_workers or maker.interpreter is not None
    return SeparateEnvironments(
        maker, num_envs=count, seed=seed, in_workers=in_workers, num_workers=environment.num_workers
    )


def simulator_maker(node: Any, *, allow: Allow) -> Maker:
    """The simulator that ``environment.simulator`` describes, checked but not made."""
    path = "environment.simulator"
    check_node(node, path=path, allow=allow)
    target = located(node["_target_"], path=f"{path}._target_", allow=allow)
    interpreter = getattr(target, "interpreter", None)
    if interpreter is not None:
        arguments = {key: value for key, value in node.items() if key != "_target_"}
        return Maker(module=target.__module__, name=target.__name__, arguments=arguments, interpreter=interpreter)
    return Maker(
        module="reverie.node_walk",
        name="made_from_node",
        arguments={"node": node, "path": path, "allow": allow},
        needs_rendering=getattr(target, "needs_rendering", False),
        summary=getattr(target, "summary", Environment.summary),
    )


def assemble_workflow(
    config: DictConfig,
    *,
    spaces: Spaces,
    train_env: VectorEnvironment | None,
    rng: RandomStreams,
    device: torch.device,
    allow: Allow,
) -> WorldModelWorkflow:
    """The initialised workflow. Components are made in the order of the YAML; each may add to ``_dims``."""
    config["_dims"] = {
        "obs": {key: _space_node(space) for key, space in spaces.obs.items()},
        "action": _space_node(spaces.action),
        "action_dim": spaces.action.dim,
    }
    # Initial weights depend on the seed alone; this is the only use of the global generator.
    torch.manual_seed(derived_seed(plain(config.experiment)["seed"], "initial weights"))
    components: dict[str, Any] = {}
    for name, node in config.components.items():
        components[str(name)] = instantiate(node, path=f"components.{name}", allow=allow)
        if hasattr(components[str(name)], "dims"):
            config["_dims"].update(components[str(name)].dims())
    context = WorkflowContext(
        config=plain(config),
        device=device,
        spaces=spaces,
        train_env=train_env,
        components=WorldModelComponents(components),
        controllers=ControllerManager(_instances(config, "controller", allow)),
        optimizers=_instances(config, "optimizers", allow),
        rng=rng,
        precision=Precision(section(RuntimeConfig, config.runtime, path="runtime").precision, device),
    )
    workflow = _workflow(plain(config.workflow), allow=allow)
    workflow.initialize(context)
    return workflow


def phases_of(config: DictConfig) -> tuple[PhaseSpec, ...]:
    return parse_phases(section(TrainingConfig, config.training, path="training").phases)


def assemble_orchestrator(config: DictConfig, parts: Parts, *, folder: Path, display: Display) -> Orchestrator:
    """The loop around ``parts``, which writes into ``folder``."""
    logging = section(LoggingConfig, config.logging, path="logging")
    checkpoint = section(CheckpointConfig, config.checkpoint, path="checkpoint")
    training = section(TrainingConfig, config.training, path="training")
    runtime = section(RuntimeConfig, config.runtime, path="runtime")
    evaluation = section(EvaluationConfig, config.evaluation, path="evaluation")
    resolved = plain(config)
    guard = UpdateGuard(
        parts.workflow,
        parts.rng,
        device=parts.device,
        limit=training.max_skipped_updates,
        black_box=BlackBox(folder, config=resolved),
        say=display.say,
    )
    return Orchestrator(
        parts,
        phases=phases_of(config),
        evaluate_every=evaluation.every_steps,
        captures_updates=runtime.captures_updates and parts.device.type == "cuda",
        model_review=ModelReview(
            parts.workflow, parts.train_env.spaces, evaluation.open_loop, folder=folder, say=display.say
        ),
        checkpoints=CheckpointManager(folder, config=checkpoint, say=display.say),
        logger=Logger(folder, config=logging, sinks=make_sinks(folder, config=logging, run_config=resolved)),
        display=display,
        guard=guard,
        labels={"experiment": resolved["experiment"]["name"], "task": resolved["task"], "logdir": str(folder)},
    )


def _space_node(space: Space) -> dict[str, Any]:
    return {"_target_": "reverie.types.Space", **asdict(space), "shape": list(space.shape)}


def _instances(config: DictConfig, name: str, allow: Allow) -> dict[str, Any]:
    nodes = config[name] or {}
    return {str(key): instantiate(node, path=f"{name}.{key}", allow=allow) for key, node in nodes.items()}


def _workflow(node: dict[str, Any], *, allow: Allow) -> WorldModelWorkflow:
    """The class that ``_target_`` names; the other keys are the fields of the dataclass its ``config`` asks for."""
    given = {key: value for key, value in node.items() if key != "_target_"}
    target = located(node.get("_target_"), path="workflow._target_", allow=allow)
    if not (isinstance(target, type) and issubclass(target, WorldModelWorkflow)):
        raise ReverieError(f"`workflow._target_` must name a WorldModelWorkflow, got {node['_target_']}.")
    config_class = get_type_hints(target.__init__).get("config")
    if config_class is not None:
        return target(**{"config": section(config_class, given, path="workflow")})
    for key in given:
        raise unknown_key(key, ["_target_"], path="workflow")
    return target()
