"""The agent of a run folder: its configuration, what it was made for, and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from reverie.configuration import check_tasks, plain, read_config, section
from reverie.datasets.spaces_json import spaces_of
from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.orchestration.command_name import reverie_command
from reverie.orchestration.parts import check_sizes
from reverie.sections import TrainingConfig
from reverie.types import ReverieError, Spaces
from reverie.workflows.base import WorldModelWorkflow


def stored_config(run: Path, allow: Sequence[str]) -> dict[str, Any]:
    """The configuration of a run that may be a stranger's: nothing in it leads outside what is allowed."""
    stored = read_config(run)
    check_tasks(stored, allow=allow)
    section(TrainingConfig, stored["training"], path="training")
    return stored


def moved_to(stored: dict[str, Any], elsewhere: DictConfig | None, *, where: str) -> DictConfig:
    """The configuration with the task and the environment of ``elsewhere``, or as it is: also where the run's own task
    is named in the run's own simulator, which has the options that the agent learned with.
    """
    if elsewhere is not None and not _is_at_home(stored, elsewhere):
        stored = {**stored, "task": plain(elsewhere.task), "environment": plain(elsewhere.environment)}
    if stored["task"] is None:
        raise ReverieError(
            f"{where} learned from a dataset and has no environment to play in: name one, for example "
            "`--task gym_CartPole-v1`"
        )
    return DictConfig(stored)


def _is_at_home(stored: dict[str, Any], elsewhere: DictConfig) -> bool:
    simulators = stored["environment"]["simulator"], plain(elsewhere.environment)["simulator"]
    targets = [None if one is None else one["_target_"] for one in simulators]
    return stored["task"] == elsewhere.task and targets[0] == targets[1]


def trained_spaces(config: DictConfig) -> Spaces:
    """The spaces that the agent of a stored configuration was made for."""
    try:
        return spaces_of(plain(config["_dims"]))
    except (KeyError, ValueError) as error:
        raise ReverieError("the section `_dims` of the stored config does not describe spaces") from error


def load_weights(workflow: WorldModelWorkflow, run: Path, checkpoint: str | None) -> str:
    """From the named checkpoint, or from the newest; the name of the one that it was."""
    manager = CheckpointManager(run, config=CheckpointConfig(), say=print)
    loaded = manager.load_named(checkpoint) if checkpoint else manager.load(with_replay=False)
    if loaded is None:
        raise ReverieError(f"{run} has no checkpoint yet: go on with `{reverie_command('resume', str(run))}` first.")
    check_sizes(workflow, loaded)
    workflow.set_state(loaded.state)
    return loaded.name
