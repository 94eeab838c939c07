"""The composition root: configuration in, objects out. All wiring happens here and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_type_hints

import torch
from omegaconf import DictConfig

from reverie.buffers.offline import OfflineBuffer
from reverie.configuration import Allow, check_node, instantiate, plain, section, unknown_key
from reverie.environments.base import Environment
from reverie.environments.parallel.batch_simulator import BatchSimulator
from reverie.environments.parallel.batched import BatchedEnvironments
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.environments.vector import VectorEnvironment
from reverie.node_walk import is_node
from reverie.offline_build import (
    check_environment,
    check_same_spaces,
    different_spaces,
    keep_stored,
    offline_buffers,
    shown_task,
)
from reverie.orchestration.black_box import BlackBox
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.orchestration.display import Display
from reverie.orchestration.evaluator import EVALUATION_BUFFER, EvaluationConfig, Evaluator
from reverie.orchestration.logger import Logger, LoggingConfig, make_sinks
from reverie.orchestration.model_review import ModelReview
from reverie.orchestration.no_environment import NoEnvironment
from reverie.orchestration.orchestrator import Orchestrator
from reverie.orchestration.parts import Parts
from reverie.orchestration.phases import PhaseSpec, parse_phases
from reverie.orchestration.recurrence import Recurrence
from reverie.orchestration.replay_memory import agent_bytes, row_bytes
from reverie.orchestration.update_guard import UpdateGuard
from reverie.replay_build import buffer_names, keep_replay_with, replay_buffers
from reverie.runtime.device import RuntimeConfig
from reverie.runtime.precision import Precision
from reverie.runtime.rng import RandomStreams, derived_seed
from reverie.sections import EnvironmentConfig, ExperimentConfig, SizeConfig, TrainingConfig
from reverie.targets import located
from reverie.types import ReverieError, Space, Spaces
from reverie.workflows.base import WorldModelWorkflow
from reverie.workflows.context import WorkflowContext, WorldModelComponents
from reverie.workflows.controllers import ControllerManager


def assemble(config: DictConfig, *, device: torch.device, allow: Allow) -> Parts:
    """Everything a training run needs below the loop. Fills in ``config._dims`` on the way."""
    experiment = section(ExperimentConfig, config.experiment, path="experiment")
    evaluation = section(EvaluationConfig, config.evaluation, path="evaluation")
    section(SizeConfig, config.size, path="size")
    rng = RandomStreams(experiment.seed, device=device)
    offline = offline_buffers(config, rng=rng, allow=allow)
    check_environment(config, phases_of(config), evaluation, has_dataset=bool(offline))
    train_env = _training_environments(config, offline, seed=experiment.seed, allow=allow)
    with ExitStack() as stack:
        stack.callback(train_env.close)  # its processes must not outlive a mistake in what follows
        check_same_spaces(offline, train_env)
        parts = _assembled_around(
            train_env, config, offline, evaluation=evaluation, rng=rng, device=device, allow=allow
        )
        stack.pop_all()
    return parts


def _training_environments(
    config: DictConfig, offline: Mapping[str, OfflineBuffer], *, seed: int, allow: Allow
) -> VectorEnvironment:
    """None are made where everything comes from a dataset, even if the run has a task to evaluate on."""
    if offline and not any(phase.has_hook("collect") for phase in phases_of(config)):
        return NoEnvironment(next(iter(offline.values())).spaces)
    return environments(config, num_envs=None, seed=derived_seed(seed, "train") % 2**31, allow=allow)


def _assembled_around(
    train_env: VectorEnvironment,
    config: DictConfig,
    offline: Mapping[str, OfflineBuffer],
    *,
    evaluation: EvaluationConfig,
    rng: RandomStreams,
    device: torch.device,
    allow: Allow,
) -> Parts:
    spaces = train_env.spaces
    collecting = None if isinstance(train_env, NoEnvironment) else train_env
    workflow = assemble_workflow(config, spaces=spaces, train_env=collecting, rng=rng, device=device, allow=allow)
    streams = dict.fromkeys(buffer_names(config), max(1, train_env.num_envs))
    buffers, reasons = replay_buffers(
        config,
        offline,
        phases=phases_of(config),
        width=row_bytes(workflow.policy(None), spaces, rng, device),
        agent_bytes=agent_bytes(workflow),
        streams=streams | {EVALUATION_BUFFER: min(evaluation.envs, evaluation.episodes)},
        rng=rng,
        device=device,
        allow=allow,
    )
    keep_stored(offline, workflow, rng=rng, device=device)
    evaluator = Evaluator(
        lambda: evaluation_environment(config, spaces=spaces, episodes=evaluation.episodes, allow=allow),
        episodes=evaluation.episodes,
        seed=plain(config.experiment)["seed"],
        device=device,
        buffer=buffers.get(EVALUATION_BUFFER),
    )
    return Parts(
        workflow=workflow,
        buffers=buffers,
        train_env=train_env,
        evaluator=evaluator,
        rng=rng,
        device=device,
        remarks=tuple(reasons),
    )


def evaluation_environment(
    config: DictConfig, *, episodes: int, allow: Allow, spaces: Spaces | None = None
) -> VectorEnvironment:
    """No more environments than episodes. They are reset with a seed of their own before they are used.

    ``spaces`` are those that the agent was made for; an environment with others is refused.
    """
    evaluation = section(EvaluationConfig, config.evaluation, path="evaluation")
    env = environments(config, num_envs=min(evaluation.envs, episodes), seed=0, allow=allow)
    if spaces is not None and (difference := different_spaces(spaces, env.spaces)) is not None:
        env.close()
        raise ReverieError(f"the agent cannot play {config.task}, which differs from what it learned: {difference}.")
    return env


def environments(config: DictConfig, *, num_envs: int | None, seed: int, allow: Allow) -> VectorEnvironment:
    """``num_envs`` copies of the configured task; None takes the number from the configuration."""
    given = plain(config.environment)
    node = given.pop("simulator", None)
    environment = section(EnvironmentConfig, given, path="environment")
    count = environment.num_envs if num_envs is None else num_envs
    if is_node(node):
        target = located(node["_target_"], path="environment.simulator._target_", allow=allow)
        if isinstance(target, type) and issubclass(target, BatchSimulator):
            if environment.frame_stack > 1:
                raise ReverieError(
                    f"`environment.frame_stack` must be 1 with {target.__name__}, which steps all environments in one "
                    "object: choose another `environment`."
                )
            path = "environment.simulator"
            return BatchedEnvironments(
                lambda given: instantiate(node, path=path, allow=allow, num_envs=count, seed=given), seed=seed
            )
    maker = simulator_maker(node, allow=allow, frame_stack=environment.frame_stack)
    # An interpreter of its own is a process of its own, whatever was asked for.
    in_workers = environment.in_workers or maker.interpreter is not None
    return SeparateEnvironments(
        maker, num_envs=count, seed=seed, in_workers=in_workers, num_workers=environment.num_workers
    )


def simulator_maker(node: Any, *, allow: Allow, frame_stack: int = 1) -> Maker:
    """The simulator that ``environment.simulator`` describes, checked but not made."""
    path = "environment.simulator"
    check_node(node, path=path, allow=allow)
    target = located(node["_target_"], path=f"{path}._target_", allow=allow)
    interpreter = getattr(target, "interpreter", None)
    if interpreter is not None:
        if frame_stack > 1:
            raise ReverieError("`environment.frame_stack` must be 1 for a simulator in an interpreter of its own.")
        arguments = {key: value for key, value in node.items() if key != "_target_"}
        return Maker(module=target.__module__, name=target.__name__, arguments=arguments, interpreter=interpreter)
    made = {"module": "reverie.node_walk", "name": "made_from_node"}
    arguments = {"node": node, "path": path, "allow": allow}
    if frame_stack > 1:
        arguments = {**made, "arguments": arguments, "count": frame_stack}
        made = {"module": "reverie.environments.stacked", "name": "made_stacked"}
    return Maker(
        **made,
        arguments=arguments,
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
    checkpoints = CheckpointManager(folder, config=checkpoint, say=display.say)
    keep_replay_with(checkpoints, parts.buffers)
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
        evaluations=Recurrence(every_steps=evaluation.every_steps, every_updates=evaluation.every_updates),
        captures_updates=runtime.captures_updates and parts.device.type == "cuda",
        model_review=ModelReview(
            parts.workflow, parts.train_env.spaces, evaluation.open_loop, folder=folder, say=display.say
        ),
        checkpoints=checkpoints,
        logger=Logger(folder, config=logging, sinks=make_sinks(folder, config=logging, run_config=resolved)),
        display=display,
        guard=guard,
        labels={"experiment": resolved["experiment"]["name"], "task": shown_task(resolved), "logdir": str(folder)},
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
