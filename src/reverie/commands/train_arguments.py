"""The arguments of `reverie train`: Hydra's options apart from the overrides, and Reverie's habits in Hydra's terms."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from reverie.commands.catalogue import CONFIGS, default_experiment, options
from reverie.commands.hydra_messages import unknown_option
from reverie.configuration import nearest
from reverie.orchestration.command_name import reverie_command
from reverie.types import ReverieError

_SWITCHES = ("--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m", "--shell-completion", "-sc")
_VALUED = ("--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd")
_FLAGS = (*_SWITCHES, *_VALUED, "--info", "-i")
"""Hydra's options. Its `--experimental-rerun` is left out: it opens a pickle."""


def split_arguments(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Hydra's options with their values, and the overrides; people mix them, Hydra's parser cannot."""
    flags: list[str] = []
    overrides: list[str] = []
    rest = list(arguments)
    while rest:
        item = rest.pop(0)
        if not item.startswith("-"):
            overrides.append(item)
            continue
        flag, equals, _ = item.partition("=")
        _refuse_unknown_flag(flag)
        flags.append(item)
        # `--info` may stand alone: what follows belongs to it unless it is an override or another option.
        is_info_kind = flag in ("--info", "-i") and rest and "=" not in rest[0] and not rest[0].startswith("-")
        if rest and not equals and (flag in _VALUED or is_info_kind):
            flags.append(rest.pop(0))
    return flags, overrides


def config_dir(flags: list[str]) -> Path | None:
    """The user's own config folder, as given with --config-dir."""
    for item, following in pairwise([*flags, ""]):
        flag, equals, value = item.partition("=")
        if flag in ("--config-dir", "-cd"):
            return Path(value if equals else following)
    return None


def with_habits(overrides: list[str], *, is_multirun: bool, own_configs: Path | None) -> list[str]:
    """The overrides in Hydra's terms: ``+experiment=X`` means ``experiment=X``, and a task brings its suite."""
    changed = [item[1:] if item.startswith("+experiment=") else item for item in overrides]
    names: list[str] = []
    for index, item in enumerate(changed):
        if item.startswith("task="):
            text = item.removeprefix("task=")
            names = [name.strip("'\"") for name in (text.split(",") if is_multirun else [text])]
            changed[index] = "task=" + ",".join(_quoted(name) for name in names)
    if not names or any(item.startswith("environment=") for item in changed):
        return changed
    suite = _suite(names, own_configs)
    # A preset of the suite (`atari100k` for `atari_pong`) that the experiment chose stays.
    is_chosen = chosen_environment(changed, own_configs).startswith(suite)
    return changed if is_chosen else [*changed, f"environment={suite}"]


def chosen_environment(overrides: list[str], own_configs: Path | None) -> str:
    """The file of the group `environment` that the experiment names; empty where it leaves it to the default."""
    named = [item.removeprefix("experiment=") for item in overrides if item.startswith("experiment=")]
    for folder in (own_configs, CONFIGS):
        file = folder / "experiment" / f"{named[-1] if named else default_experiment()}.yaml" if folder else None
        if file is not None and file.is_file():
            found = re.search(r"override /environment: *([\w-]+)", file.read_text(encoding="utf-8"))
            return found[1] if found else ""
    return ""


def _suite(tasks: list[str], own_configs: Path | None) -> str:
    suites = list(options("environment", own_configs))
    wanted = ["gym" if task.startswith("gym:") else task.partition("_")[0] for task in tasks]
    for task, suite in zip(tasks, wanted, strict=True):
        if suite not in suites:
            problem = unknown_option("suite", suite, suites)
            raise ReverieError(f"cannot find the task '{task}': {problem}; a task is named SUITE_TASK")
    if len(set(wanted)) > 1:
        raise ReverieError(f"the tasks of one multirun must share a suite, got {', '.join(dict.fromkeys(wanted))}")
    return wanted[0]


def _quoted(value: str) -> str:
    # Hydra's grammar gives a meaning to ':', '(', spaces and others; a task name is text, whatever it contains.
    return "'" + value.replace("'", "\\'") + "'"


def _refuse_unknown_flag(flag: str) -> None:
    if flag not in _FLAGS:
        near = nearest(flag, [known for known in _FLAGS if known.startswith("--")])
        hint = f"did you mean `{near}`?" if near else "settings are given as key=value"
        raise ReverieError(f"unknown option `{flag}`: {hint} (see `{reverie_command('train', '--help')}`)")
