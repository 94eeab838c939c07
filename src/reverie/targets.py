"""Finds what a ``_target_`` names, and refuses what lies outside the packages that the user trusts."""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

from reverie.signatures import nearest
from reverie.types import ReverieError

_TASK_PACKAGE = re.compile(r"gym[:_](?P<package>[^:]*):")

OWN_PACKAGES = (
    *("reverie.workflows", "reverie.components", "reverie.buffers", "reverie.environments", "reverie.runtime"),
    "reverie.types",
)
"""Where a stored config may point without ``--allow``. Not all of Reverie: `reverie.commands` could run a program."""


def located(target: Any, *, path: str, allow: Sequence[str] | None) -> Callable[..., Any]:
    """The callable named by the dotted text ``target``. ``allow`` None trusts every package.

    The name is checked before anything is imported, and what it leads to is checked again: a module of Reverie must
    not be a door to what it happens to import.
    """
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")) or "." not in target:
        raise ReverieError(f"`{path}` must be a dotted name such as `reverie.buffers.x.Y`, got {target!r}")
    _refuse_outside(target, target, path=path, allow=allow)
    if allow is not None and any(part.startswith("_") for part in target.split(".")):
        raise ReverieError(f"`{path}` names `{target}`, which is private: a stored config cannot use it")
    found: Any = None
    for depth, part in enumerate(target.split("."), start=1):
        name = ".".join(target.split(".")[:depth])
        found = getattr(found, part) if hasattr(found, part) else _imported(name, found, target=target, path=path)
        if isinstance(found, ModuleType) and found.__name__ != name:
            _refuse_outside(found.__name__, target, path=path, allow=allow)
    if isinstance(found, ModuleType) or not callable(found):
        raise ReverieError(f"`{path}` names `{target}`, which is no class or function")
    _refuse_outside(f"{getattr(found, '__module__', None)}", target, path=path, allow=allow)
    if allow is not None and not isinstance(found, type):
        raise ReverieError(f"`{path}` names `{target}`: in a stored config it must be a class, not a function")
    return found


def check_task(task: str, *, allow: Sequence[str]) -> None:
    """Refuses ``gym:PACKAGE:Id`` from a stored config unless the user trusts PACKAGE: making the task imports it."""
    named = _TASK_PACKAGE.match(task)
    if named and not _is_inside(named["package"], allow):
        package = named["package"].partition(".")[0]
        raise ReverieError(
            f"the task `{task}` imports `{package}`; if you trust that package, name it: --allow {package}"
        )


def check_tasks(config: Any, *, allow: Sequence[str]) -> None:
    """Refuses every text in a stored config that a simulator could take for such a task, wherever it stands."""
    if isinstance(config, str):
        check_task(config, allow=allow)
    elif isinstance(config, Mapping):
        for value in config.values():
            check_tasks(value, allow=allow)
    elif isinstance(config, (list, tuple)):
        for value in config:
            check_tasks(value, allow=allow)


def foreign_packages(config: Any, *, key: str | None = None) -> list[str]:
    """The packages that whoever opens a run with this config must trust, each once."""
    if isinstance(config, str):
        named = _TASK_PACKAGE.match(config)
        if named:
            return [named["package"].partition(".")[0]]
        return [config.partition(".")[0]] if key == "_target_" and not _is_inside(config, OWN_PACKAGES) else []
    if not isinstance(config, (Mapping, list, tuple)):
        return []
    items = config.items() if isinstance(config, Mapping) else ((key, value) for value in config)
    return list(dict.fromkeys(name for inner, value in items for name in foreign_packages(value, key=inner)))


def _refuse_outside(name: str, target: str, *, path: str, allow: Sequence[str] | None) -> None:
    if allow is None or _is_inside(name, [*OWN_PACKAGES, *allow]):
        return
    package = name.partition(".")[0]
    if package == "reverie":
        places = ", ".join(OWN_PACKAGES)
        raise ReverieError(f"`{path}` names `{target}`, which is no part for a config: it must lie in {places}")
    raise ReverieError(
        f"`{path}` names `{target}`, which leads outside Reverie; if you trust that package, name it: --allow {package}"
    )


def _is_inside(name: str, packages: Iterable[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _imported(name: str, parent: Any, *, target: str, path: str) -> ModuleType:
    if parent is not None and not isinstance(parent, ModuleType):
        raise _not_found(name, dir(parent), target=target, path=path)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise _not_found(name, _names_in(parent), target=target, path=path) from error
        raise ReverieError(
            f"`{path}` names `{target}`, which needs `{error.name}`: install it with `pip install {error.name}`"
        ) from error


def _names_in(module: ModuleType | None) -> list[str]:
    if module is None:
        return [found.name for found in pkgutil.iter_modules()]
    modules = [found.name for found in pkgutil.iter_modules(getattr(module, "__path__", []))]
    return [*modules, *(name for name in vars(module) if not name.startswith("_"))]


def _not_found(name: str, candidates: Iterable[str], *, target: str, path: str) -> ReverieError:
    parent, _, last = name.rpartition(".")
    near = nearest(last, candidates)
    if near:
        hint = f"did you mean `{f'{parent}.' if parent else ''}{near}`?"
    else:
        hint = "check the spelling, and that its folder is on PYTHONPATH"
    return ReverieError(f"`{path}` names `{target}`, but there is no `{name}`: {hint}")
