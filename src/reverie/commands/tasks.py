"""`reverie tasks [PATTERN]`: what an agent can be trained on, and what is missing for it to run here."""

from __future__ import annotations

import importlib
import pkgutil
from fnmatch import fnmatchcase
from types import ModuleType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from reverie.commands.arguments import Parser

if TYPE_CHECKING:
    from reverie.environments.base import TaskInfo

_DESCRIPTION = """\
List the tasks of every environment suite: what the agent sees, how it acts, and whether the task runs here.

Train on one with `reverie train task=NAME`. A task of your own is `gym:my_package:MyEnv-v0`."""

_EPILOG = """\
examples:
  reverie tasks
  reverie tasks cartpole          names that contain the text
  reverie tasks 'gym_*-v1'        names that match the pattern"""

_HEADINGS = ("task", "observation", "action", "episode steps", "frames per step", "runs here")


def run(arguments: list[str]) -> int:
    parser = Parser("tasks", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="", help="part of a name, or a glob")
    pattern = parser.parse_args(arguments).pattern
    found = [task for module in suites() for task in module.tasks()]
    chosen = [task for task in found if matches(task.name, pattern)]
    if not chosen:
        raise _no_match(pattern, [task.name for task in found])
    _show([_row(task) for task in chosen])
    return 0


def suites() -> list[ModuleType]:
    """The modules of `reverie.environments` that offer ``tasks()``, one per suite."""
    package = importlib.import_module("reverie.environments")
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    modules = [importlib.import_module(f"reverie.environments.{name}") for name in names]
    return [module for module in modules if hasattr(module, "tasks")]


def matches(name: str, pattern: str) -> bool:
    """Whether ``pattern`` is part of ``name`` or, with one of ``*?[``, describes all of it. Case does not count."""
    if any(mark in pattern for mark in "*?["):
        return fnmatchcase(name.lower(), pattern.lower())
    return pattern.lower() in name.lower()


def _no_match(pattern: str, names: list[str]) -> Exception:
    from reverie.configuration import nearest
    from reverie.types import ReverieError

    # People type `cartpol`, not `gym_cartpol`: compare with and without the suite.
    short = {name.partition("_")[2]: name for name in names} | {name: name for name in names}
    near = nearest(pattern, short)
    hint = f"did you mean `{short[near]}`?" if near else "`reverie tasks` lists them all"
    return ReverieError(f"no task matches `{pattern}`: {hint}")


def _row(task: TaskInfo) -> tuple[str, ...]:
    steps = "no limit" if task.episode_steps is None else str(task.episode_steps)
    return task.name, task.observation, task.action, steps, str(task.frames_per_step), task.problem or "yes"


def _show(rows: list[tuple[str, ...]]) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        table = Table(*_HEADINGS)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(len(row[column]) for row in (_HEADINGS, *rows)) for column in range(len(_HEADINGS))]
    for row in (_HEADINGS, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
