"""`reverie tasks [PATTERN]`: what an agent can be trained on, and what is missing for it to run here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from reverie.commands.arguments import Parser
from reverie.orchestration.command_name import reverie_command

if TYPE_CHECKING:
    from reverie.environments.base import TaskInfo
    from reverie.types import ReverieError

_DESCRIPTION = """\
List what an agent can be trained on. Without PATTERN: the suites, one line each. With it: every task that fits, with
what the agent sees, how it acts, how long an episode is, and whether the task runs here.

A task of your own is gym:my_package:MyEnv-v0."""

_EPILOG = """\
examples:
  %(prog)s
  %(prog)s cartpole          names that contain the text
  %(prog)s 'gym_*-v1'        names that match the pattern
  %(prog)s '*'               all of them, which takes a while"""

_SUITE_HEADINGS = ("suite", "tasks", "example", "runs here")
_TASK_HEADINGS = ("task", "observation", "action", "episode steps", "frames per step", "runs here")


def run(arguments: list[str]) -> int:
    parser = Parser("tasks", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("pattern", metavar="PATTERN", nargs="?", default="", help="part of a name, or a glob")
    pattern = parser.parse_args(arguments).pattern
    if not pattern:
        _show_suites()
        return 0
    chosen = _chosen(pattern)
    if not chosen:
        raise _no_match(pattern)
    _show(_TASK_HEADINGS, [_row(info) for info in _described(chosen)])
    return 0


def matches(name: str, pattern: str) -> bool:
    """Whether ``pattern`` is part of ``name`` or, with one of ``*?[``, describes all of it. Case does not count."""
    if any(mark in pattern for mark in "*?["):
        return fnmatchcase(name.lower(), pattern.lower())
    return pattern.lower() in name.lower()


def short_problem(info: TaskInfo) -> str:
    """What is in the way of a task, for a line that already names it."""
    return (info.problem or "").removeprefix(f"{info.name} ")


def _chosen(pattern: str) -> list[str]:
    from reverie.environments.suites import suite_names, tasks_of

    if pattern.startswith("gym:"):  # somebody's own, which no list holds
        return [pattern]
    return [task for name in suite_names() for task in tasks_of(name) if matches(task, pattern)]


def _show_suites() -> None:
    from reverie.environments.suites import example_of, suite_names, suite_of, tasks_of

    examples = [example_of(name) for name in suite_names()]
    rows = []
    for info in _described(examples):
        name = suite_of(info.name)
        rows.append((name, str(len(tasks_of(name))), info.name, short_problem(info) or "yes"))
    _show(_SUITE_HEADINGS, rows)
    print(f"\nOne suite, or tasks by name:  {reverie_command('tasks', 'gym')}  {reverie_command('tasks', 'cartpole')}")
    print(f"Train on one:                 {reverie_command('train', 'task=gym_CartPole-v1')}")
    print(f"Check one, your own too:      {reverie_command('env', 'check', 'gym:my_package:MyEnv-v0')}")


def _described(tasks: Sequence[str]) -> list[TaskInfo]:
    """All descriptions; a terminal shows meanwhile how far it is."""
    from rich.console import Console

    from reverie.environments.task_descriptions import descriptions

    console = Console(stderr=True)
    found: list[TaskInfo] = []
    with console.status("") if console.is_terminal else nullcontext() as status:
        for info in descriptions(tasks):
            found.append(info)
            if status is not None:
                status.update(f"{len(found)} of {len(tasks)}: {info.name}")
    return found


def _no_match(pattern: str) -> ReverieError:
    from reverie.environments.suites import nearest_task
    from reverie.types import ReverieError

    near = nearest_task(pattern)
    hint = f"did you mean `{near}`?" if near else f"`{reverie_command('tasks')}` lists the suites"
    return ReverieError(f"no task matches `{pattern}`: {hint}")


def _row(info: TaskInfo) -> tuple[str, ...]:
    steps = "no limit" if info.episode_steps is None else str(info.episode_steps)
    if info.problem is not None:
        return info.name, info.observation, info.action, "", "", short_problem(info)
    return info.name, info.observation, info.action, steps, str(info.frames_per_step), "yes"


def _show(headings: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)  # a bracket in `pip install "x[y]"` is no markup
    if console.is_terminal:
        table = Table(*headings)
        for row in rows:
            table.add_row(*row)
        console.print(table)
        return
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    for row in (headings, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
