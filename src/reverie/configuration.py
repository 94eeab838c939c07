"""Configuration at the door: plain YAML in, checked objects out, every mistake one sentence.

Also the rule for a resumed run: which keys may differ from those it was started with.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from reverie.environments.suites import suite_steps
from reverie.node_walk import BuildWalk, CheckWalk, is_node, mismatch, shown
from reverie.signatures import joined
from reverie.signatures import nearest as nearest
from reverie.signatures import unknown_key as unknown_key
from reverie.targets import check_task as check_task
from reverie.targets import check_tasks as check_tasks
from reverie.types import ReverieError

T = TypeVar("T")

Allow = Sequence[str] | None
"""Packages beside Reverie that a config may point into; None trusts what the user wrote just now."""

SECTIONS = (
    *("experiment", "task", "logdir", "training", "evaluation", "checkpoint", "logging", "environment", "size"),
    *("runtime", "buffer", "components", "controller", "optimizers", "workflow", "_dims"),
)
"""The top-level keys of a composed config, in order."""

_MAY_DIFFER = re.compile(
    r"(logging|checkpoint|runtime)(\..+)?"
    r"|training\.(total_timesteps|total_updates|resume_path|max_skipped_updates)"
    r"|buffer\.[^.]+\.path"  # a dataset may have moved; its checksum must stay
    r"|buffer\.([^.]+\.)?device"  # where rows live
    r"|training\.phases\.(.+\.)?duration_(steps|updates|cycles)"
    r"|training\.lengths\..+"  # where an experiment names durations, which phases refer to
    r"|evaluation\.open_loop\.(pictures_every|columns|episode_length)"
    r"|experiment\.device|logdir"
)
_ABSENT = object()


def covering(rows: int, envs: int, batch: int) -> int:
    """Batches until every row was in one. Rows come from all environments at once: perhaps some more than asked for."""
    return -(-(-(-rows // envs) * envs) // batch)


OmegaConf.register_new_resolver("smaller", min, replace=True)  # ${smaller:A,B} in YAML
OmegaConf.register_new_resolver("covering", covering, replace=True)  # ${covering:ROWS,ENVS,BATCH} in YAML
OmegaConf.register_new_resolver("suite_steps", suite_steps, replace=True)  # ${suite_steps:${task}} in YAML


def section(cls: type[T], node: Mapping[Any, Any], *, path: str) -> T:
    """A (nested) dataclass from plain config, checked. A ``ValueError`` of the dataclass names the section."""
    given = plain(node)
    if not isinstance(given, Mapping):
        raise mismatch(cls, given, path)
    return BuildWalk(allow=()).made(cls, _string_keys(given, path), path)


def instantiate(node: Mapping[Any, Any], *, path: str, allow: Allow, **extra: Any) -> Any:
    """The object that a ``_target_`` node describes; nested nodes are made first.

    The whole node is checked before anything in it is called. ``allow`` names the packages beside Reverie in which a
    target may lie, at any depth; None means that the user wrote this config now and may call anything. ``extra`` are
    arguments that the config cannot hold; they are passed on as they are.
    """
    given = plain(node)
    check_node(given, path=path, allow=allow, **extra)
    return BuildWalk(allow=allow).node(given, path, extra=extra)


def check_node(node: Any, *, path: str, allow: Allow, **extra: Any) -> None:
    """Refuses a node that cannot be made as it is written; calls nothing in it."""
    if not is_node(node):
        raise ReverieError(f"`{path}` must be a mapping with a `_target_`, got {shown(node)}")
    CheckWalk(allow=allow).node(node, path, extra=extra)


def check_sections(config: Mapping[Any, Any]) -> None:
    """Refuses a top-level key that no part of Reverie reads."""
    for key in config:
        if str(key) not in SECTIONS:
            raise unknown_key(str(key), SECTIONS, path="")


def plain(node: Any) -> Any:
    """Dicts, lists and scalars, interpolations resolved. Plain values come back as they are."""
    if not isinstance(node, (DictConfig, ListConfig)):
        return node
    try:
        return OmegaConf.to_container(node, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise ReverieError(omegaconf_sentence(error)) from error


def omegaconf_sentence(error: OmegaConfBaseException) -> str:
    """Which key could not be read, and why. OmegaConf's own text repeats the key on further lines."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ReverieError):
        cause = cause.__context__
    if cause is not None:  # a resolver of ours said no
        return str(cause)
    reason = str(error.msg or error).splitlines()[0].rstrip(".")
    key = str(error.full_key or error.key or "")
    if "missing mandatory value" in reason.lower() and key:
        return f"`{key}` has no value: give it one with `{key}=...`"
    if lacking := re.search(r"'size\.(\w+)' not found", reason):
        return (
            f"`{key}` reads `size.{lacking[1]}`, which this size does not have: choose a size of this algorithm "
            "(`debug` and `tiny` fit all)"
        )
    return f"cannot read `{key}`: {reason}" if key else f"cannot read the config: {reason}"


def config_text(config: Mapping[Any, Any]) -> str:
    """YAML of the resolved config, as ``read_config`` reads it back."""
    return OmegaConf.to_yaml(OmegaConf.create(plain(config)))


def read_config(run: Path) -> dict[str, Any]:
    """The resolved config of a run folder. Only plain values: a stranger's YAML makes no objects."""
    file = run / "config.yaml"
    if not file.is_file():
        why = "it holds no config.yaml" if run.exists() else "it does not exist"
        raise ReverieError(f"`{run}` is not a run folder: {why} (runs usually lie in `runs/`)")
    try:
        config = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ReverieError(f"cannot read `{file}` ({yaml_words(error)}): restore it from a copy of the run") from error
    if not isinstance(config, dict):
        raise ReverieError(f"`{file}` must hold a mapping of sections, got {shown(config)}")
    return checked_config(config, where=str(file))


def yaml_words(error: Exception) -> str:
    """Where YAML breaks and why, without the drawing."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}"


def checked_config(config: dict[str, Any], *, where: str) -> dict[str, Any]:
    """``config`` itself, if it is the whole resolved config of a run and nothing else."""
    check_sections(config)
    if missing := [name for name in SECTIONS if name not in config]:
        raise ReverieError(f"`{where}` is not the config of a run: it lacks {', '.join(missing)}")
    _refuse_references(config, "", where)
    return config


def with_overrides(config: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """A copy of ``config`` with each ``key=value`` put in its place. The key must exist; list items go by number."""
    changed = copy.deepcopy(dict(config))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ReverieError(f"cannot read `{override}`: write key=value, for example training.total_timesteps=50000")
        *parents, last = (part for part in re.split(r"[.\[\]]+", key) if part)
        holder: Any = changed
        path = ""
        for part in parents:
            holder = holder[_place(holder, part, path)]
            path = joined(path, part)
        holder[_place(holder, last, path)] = _parsed(text, key)
    return changed


def may_differ(key: str) -> bool:
    """Whether a resumed run may change ``key``: durations, logging, pictures, checkpoints, runtime, where it runs."""
    return _MAY_DIFFER.fullmatch(key) is not None


def refuse_different_config(old: Mapping[Any, Any], new: Mapping[Any, Any], *, where: str) -> None:
    """Raises with the list of keys that differ and must not. ``where`` is the run folder."""
    changes = [
        f"{key}: {_side(before)} -> {_side(after)}"
        for key, before, after in _differences(old, new, "")
        if not may_differ(key)
    ]
    if changes:
        raise ReverieError(
            f"`{where}` was started with another config ({'; '.join(changes)}): only durations, logging, pictures, "
            "checkpoint, runtime, experiment.device, buffer.device and the path of a dataset may differ on resume, so "
            "undo these or start a new run in another logdir"
        )


def _refuse_references(value: Any, path: str, where: str) -> None:
    """A stored config is resolved. A reference in it could become anything after the checks."""
    if isinstance(value, str) and "${" in value:
        raise ReverieError(f"`{where}` holds a reference at `{path}` ({shown(value)}): write the value itself there")
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            _refuse_references(item, joined(path, key), where)


def _differences(old: Any, new: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        pairs = [(key, old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in dict.fromkeys([*old, *new])]
    elif isinstance(old, (list, tuple)) and isinstance(new, (list, tuple)):
        padded = [[*side, *[_ABSENT] * (max(len(old), len(new)) - len(side))] for side in (old, new)]
        pairs = [(index, *pair) for index, pair in enumerate(zip(*padded, strict=True))]
    else:
        if old != new or isinstance(old, bool) != isinstance(new, bool):
            yield path, old, new
        return
    for key, before, after in pairs:
        yield from _differences(before, after, joined(path, key))


def _side(value: Any) -> str:
    return "absent" if value is _ABSENT else shown(value)


def _place(holder: Any, part: str, path: str) -> Any:
    """The key or index that ``part`` means in ``holder``."""
    if isinstance(holder, dict):
        if part in holder:
            return part
        raise unknown_key(part, [str(key) for key in holder], path=path)
    if isinstance(holder, list):
        if part.isdecimal() and int(part) < len(holder):
            return int(part)
        raise unknown_key(part, [str(index) for index in range(len(holder))], path=path)
    raise ReverieError(f"unknown key `{joined(path, part)}`: `{path}` is {shown(holder)} and has no keys")


def _parsed(text: str, key: str) -> Any:
    try:
        return plain(OmegaConf.from_dotlist([f"value={text}"]))["value"]
    except yaml.YAMLError as error:
        raise ReverieError(f"cannot read the value of `{key}`: {text!r} is not valid YAML") from error


def _string_keys(given: Any, path: str) -> dict[str, Any]:
    for key in given:
        if not isinstance(key, str):
            raise ReverieError(f"keys of `{path}` must be text, got {key!r}")
    return dict(given)
