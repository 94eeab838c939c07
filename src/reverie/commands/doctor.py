"""`reverie doctor`: is this machine ready to train? Every line is something that was tried just now."""

from __future__ import annotations

import inspect
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from types import ModuleType
from typing import TYPE_CHECKING

from reverie.commands.arguments import Parser

if TYPE_CHECKING:
    from reverie.environments.base import Environment

_DESCRIPTION = """\
Check this machine: Python, torch, CUDA, disk and memory, one real step in every environment suite, and the extras.

The exit code is 0 when training can start and 1 when something is in its way."""

_GIB = 2**30
_MIN_DISK_BYTES = 1 * _GIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report. A finding that is not ``is_fine`` stands in the way of training."""

    name: str
    text: str
    is_fine: bool = True


def run(arguments: list[str]) -> int:
    Parser("doctor", description=_DESCRIPTION).parse_args(arguments)
    problems = []
    for finding in findings():
        print(f"{'ok ' if finding.is_fine else 'BAD'}  {finding.name:<14}{finding.text}", flush=True)
        if not finding.is_fine:
            problems.append(finding.name)
    print(f"Not ready: see {', '.join(problems)}." if problems else "Ready: start with `reverie train`.")
    return 1 if problems else 0


def findings() -> Iterator[Finding]:
    """The report, line by line, as the checks are made."""
    yield _python(sys.version_info[:3])
    yield from _torch()
    yield disk(shutil.disk_usage(os.curdir).free)
    yield Finding(name="memory", text=f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / _GIB:.1f} GiB")
    from reverie.commands.tasks import suites

    for suite in suites():
        yield stepped(suite)
    yield from _extras()


def disk(free_bytes: int) -> Finding:
    """Whether the working directory, where runs/ is made, has room for a run."""
    text = f"{free_bytes / _GIB:.1f} GiB free in the working directory"
    is_fine = free_bytes >= _MIN_DISK_BYTES
    return Finding(name="disk", text=text if is_fine else f"{text}; free at least 1 GiB", is_fine=is_fine)


def stepped(suite: ModuleType) -> Finding:
    """Makes the first task of ``suite`` that should run here, and takes one step in it."""
    name = f"suite {suite.__name__.rpartition('.')[2]}"
    tasks = suite.tasks()
    runnable = [task.name for task in tasks if task.problem is None]
    if not runnable:
        return Finding(name=name, text=f"not installed: {tasks[0].problem if tasks else 'it has no tasks'}")
    try:
        _take_step(suite, runnable[0])
    except Exception as error:  # whatever a simulator raises is the finding
        return Finding(name=name, text=f"{runnable[0]} fails: {type(error).__name__}: {error}", is_fine=False)
    return Finding(name=name, text=f"one step in {runnable[0]}; {len(runnable)} of {len(tasks)} tasks run here")


def _take_step(suite: ModuleType, task: str) -> None:
    import numpy as np

    environment = _environment_class(suite)(task=task)
    try:
        environment.reset(seed=0)
        action = environment.spaces.action
        environment.step(np.zeros(action.shape, dtype=action.dtype))
    finally:
        environment.close()


def _environment_class(suite: ModuleType) -> Callable[..., Environment]:
    """The suite's own environment; every suite makes it from `task=NAME`."""
    from reverie.environments.base import Environment

    classes = [found for found in vars(suite).values() if inspect.isclass(found) and issubclass(found, Environment)]
    return next(found for found in classes if found.__module__ == suite.__name__)


def _python(found: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, found))
    is_fine = (3, 11) <= found[:2] <= (3, 13)
    return Finding(name="python", text=text if is_fine else f"{text}; install 3.11, 3.12 or 3.13", is_fine=is_fine)


def _torch() -> Iterator[Finding]:
    import torch

    product = float(torch.ones(8).dot(torch.ones(8)))
    threads = f"{torch.get_num_threads()} threads"
    yield Finding(name="torch", text=f"{torch.__version__}, {threads}", is_fine=product == 8.0)
    if not torch.cuda.is_available():
        yield Finding(name="cuda", text="none; training runs on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        text = f"{torch.cuda.get_device_name(index)}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        yield Finding(name=f"cuda {index}", text=text)


def _extras() -> Iterator[Finding]:
    """Each optional dependency; a missing one is no problem, its line says how to get it."""
    try:
        lines = requires("reverie") or []
    except PackageNotFoundError:
        yield Finding(name="extras", text="unknown: reverie runs from source and is not installed")
        return
    for line in lines:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match:
            yield Finding(name=f"extra {match[2]}", text=_installed(package=match[1], extra=match[2]))


def _installed(*, package: str, extra: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed: pip install 'reverie[{extra}]'"
