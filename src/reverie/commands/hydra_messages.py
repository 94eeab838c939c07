"""Hydra's and OmegaConf's complaints as one sentence each, in the words of the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from reverie.commands.catalogue import CONFIGS, GROUPS, options
from reverie.configuration import SECTIONS, nearest, omegaconf_sentence, yaml_words
from reverie.orchestration.command_name import reverie_command

CONFIG_ERRORS = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, RecursionError)
"""What Hydra may raise while it reads arguments and composes; the job's own errors never pass through it."""


_VALUES = ("task", "logdir")
"""The sections that are a single value: people look for them inside other sections."""


def sentence(error: Exception, overrides: Sequence[str], config_dir: Path | None) -> str:
    """What is wrong with the command line or with a config file, and what would be right."""
    if isinstance(error, MissingConfigException):
        return _missing_config(error, config_dir)
    if isinstance(error, OverrideParseException):
        return f"cannot read `{error.override}`: {_first_line(error)} (write key=value; quote odd text: 'key=\"a b\"')"
    if isinstance(error, RecursionError):
        return "the config files name each other in a circle: look at the `defaults` of your own ones"
    if isinstance(error, UnicodeDecodeError):
        where = f" below {config_dir}" if config_dir else ""
        return f"a config file{where} is not text in UTF-8 ({error.reason}): write it anew as YAML"
    if isinstance(error, yaml.YAMLError):
        return f"a config file is not valid YAML: {yaml_words(error)}"
    unknown = re.match(r"Could not (?:override|delete from config\.) '([^']+)'", str(error))
    if unknown:
        inner = re.search(r"full_key: (\S+)", str(error.__cause__))  # of a mapping, whose own key may be known
        return _unknown_key(inner[1] if inner else unknown[1], overrides, config_dir)
    cause = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(cause, OmegaConfBaseException):
        return omegaconf_sentence(cause)
    if "Ambiguous value" in str(error):
        return f"{_first_line(error)}: add --multirun to run once for each value, or quote the text"
    return _first_line(error)


def unknown_option(group: str, name: str, valid: Sequence[str]) -> str:
    """The sentence for a choice that a config group does not hold."""
    near = nearest(name, valid)
    hint = f": did you mean '{near}'?" if near else ""
    return f"unknown {group} '{name}'{hint} (available: {', '.join(valid)})"


def _missing_config(error: MissingConfigException, config_dir: Path | None) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if group in GROUPS:
        return unknown_option(group, name, list(options(group, config_dir)))
    return unknown_option(group, name, error.options) if group and error.options else _first_line(error)


def _unknown_key(key: str, overrides: Sequence[str], config_dir: Path | None) -> str:
    parent, _, last = key.rpartition(".")
    if last in _VALUES:
        return f"unknown key `{key}`: `{last}` belongs to no section, write `{last}=...`"
    known = [*SECTIONS, *GROUPS, *_composed_keys(overrides, config_dir)]
    siblings = [name.rpartition(".")[2] for name in known if parent and name.rpartition(".")[0] == parent]
    near, hint = nearest(key, dict.fromkeys(known)), f"`{reverie_command('train', '--cfg', 'job')}` shows every key"
    if "_target_" in siblings:  # a part, and others that may stand in its place take other keys
        near = f"{parent}.{name}" if (name := nearest(last, siblings)) else None
        hint = f"give it by `+{key}=...` where the part takes it"
    if near:
        hint = f"did you mean `{near}`?"
    listed = f" (valid: {', '.join(siblings)})" if siblings else ""
    return f"unknown key `{key}`: {hint}{listed}"


def _composed_keys(overrides: Sequence[str], config_dir: Path | None) -> list[str]:
    """Every dotted key of the config that the chosen groups give. Overrides of single keys do not matter for it."""
    chosen = [item for item in overrides if item.partition("=")[0] in GROUPS and not {",", "{"} & set(item)]
    search_path = [f"hydra.searchpath=['file://{config_dir.resolve()}']"] if config_dir else []
    GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        config = compose("config", overrides=[*search_path, *chosen])
    container = OmegaConf.to_container(config, resolve=False)
    return list(_dotted(container, "")) if isinstance(container, Mapping) else []


def _dotted(node: object, path: str) -> Iterator[str]:
    items = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        name = f"{path}.{key}" if path else str(key)
        yield name
        yield from _dotted(value, name)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else type(error).__name__
