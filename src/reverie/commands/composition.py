"""Configs as `reverie train` would compose them: of a task, for the commands that look at its environment, or whole."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from reverie.commands import hydra_messages
from reverie.commands.catalogue import CONFIGS
from reverie.commands.train_arguments import with_habits
from reverie.types import ReverieError

IN_WORKERS = "++environment.in_workers=true"
"""An override: the simulator in a process of its own, whatever the default experiment says."""


def composed(task: str, overrides: Sequence[str] = ()) -> DictConfig:
    """The whole config, in which the environment is that of ``task`` and of ``overrides``."""
    return composed_run([f"task={task}", *overrides])


def composed_run(overrides: Sequence[str], own_configs: Path | None = None) -> DictConfig:
    """The config of the run that `reverie train` would make of ``overrides``; ``own_configs`` is its --config-dir."""
    config = _composed(overrides, own_configs)
    OmegaConf.set_struct(config, False)  # `_dims` is filled in later
    return config


def chosen_option(group: str, overrides: Sequence[str]) -> str:
    """What that run has of a group of files, such as the size that its experiment brings."""
    return str(_composed(overrides, None, has_hydra=True).hydra.runtime.choices[group])


def _composed(overrides: Sequence[str], own_configs: Path | None, *, has_hydra: bool = False) -> DictConfig:
    given = with_habits(list(overrides), is_multirun=False, own_configs=own_configs)
    search_path = [f"hydra.searchpath=['file://{own_configs.resolve()}']"] if own_configs else []
    GlobalHydra.instance().clear()
    try:
        with warnings.catch_warnings(), initialize_config_dir(str(CONFIGS), version_base="1.3"):
            warnings.filterwarnings("ignore", module=r"hydra\.")  # it quarrels with newer releases of OmegaConf
            return compose("config", overrides=[*search_path, *given], return_hydra_config=has_hydra)
    except hydra_messages.CONFIG_ERRORS as error:
        raise ReverieError(hydra_messages.sentence(error, given, own_configs)) from error
