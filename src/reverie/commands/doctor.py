"""`reverie doctor`: is this machine ready to train? Every line is something that was tried just now."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Literal

from reverie.commands.arguments import Parser
from reverie.orchestration.command_name import reverie_command
from reverie.runtime.machine_memory import Memory, machine_memory

_DESCRIPTION = """\
Check this machine: Python, torch, CUDA, OpenGL, disk and memory, one real step in every environment suite, and the
extras.

The exit code is 0 when training can start and 1 when something is in its way. A suite that is not installed is not in
the way; its line says how to get it."""

_GIB = 2**30
_MIB = 2**20
_MIN_DISK_BYTES = 1 * _GIB
_MIN_MEMORY_BYTES = 2 * _GIB
_MIN_SHARED_BYTES = 16 * _MIB
_STEP_SECONDS = 120.0
_CORE_SUITES = ("builtin", "gym")
"""The suites that need nothing but Reverie itself."""

Verdict = Literal["ok", "--", "BAD"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One line of the report: in order, not usable here, or in the way of training."""

    name: str
    text: str
    verdict: Verdict = "ok"


def run(arguments: list[str]) -> int:
    Parser("doctor", description=_DESCRIPTION).parse_args(arguments)
    found: list[Finding] = []
    for finding in findings():
        print(f"{finding.verdict:<4} {finding.name:<18}{finding.text}", flush=True)
        found.append(finding)
    bad = [one.name for one in found if one.verdict == "BAD"]
    unusable = [one.name for one in found if one.verdict == "--"]
    if unusable:
        print(f"Not usable here: {', '.join(unusable)}.")
    print(f"Not ready: see {', '.join(bad)}." if bad else f"Ready: start with `{reverie_command('train')}`.")
    return 1 if bad else 0


def findings() -> Iterator[Finding]:
    """The report, line by line, as the checks are made."""
    from reverie.environments.suites import example_of, suite_names

    yield _python(sys.version_info[:3])
    yield from _torch()
    yield rendering()
    yield disk(shutil.disk_usage(os.curdir).free)
    yield memory(machine_memory())
    if Path("/dev/shm").is_dir():
        yield shared_memory(shutil.disk_usage("/dev/shm").free)
    yield from stepped([example_of(name) for name in suite_names()])
    yield from _extras()


def disk(free_bytes: int) -> Finding:
    """Whether the working directory, where runs/ is made, has room for a run."""
    text = f"{free_bytes / _GIB:.1f} GiB free in the working directory"
    if free_bytes >= _MIN_DISK_BYTES:
        return Finding(name="disk", text=text)
    return Finding(name="disk", text=f"{text}; free at least 1 GiB", verdict="BAD")


def memory(found: Memory) -> Finding:
    """Whether a run fits: torch and one simulator take about a gigabyte, and the buffer comes on top."""
    available = found.total_bytes if found.available_bytes is None else found.available_bytes
    left = "" if found.available_bytes is None else f", {available / _GIB:.1f} GiB available"
    text = f"{found.total_bytes / _GIB:.1f} GiB{' (the limit of this container)' if found.is_limit else ''}{left}"
    if available >= _MIN_MEMORY_BYTES:
        return Finding(name="memory", text=text)
    return Finding(
        name="memory", text=f"{text}; a run needs 2 GiB: end other programs or raise the limit", verdict="BAD"
    )


def shared_memory(free_bytes: int) -> Finding:
    """Whether worker processes have room for their observations; containers often come with very little."""
    text = f"{free_bytes / _MIB:.0f} MiB free in /dev/shm"
    if free_bytes >= _MIN_SHARED_BYTES:
        return Finding(name="shared memory", text=text)
    return Finding(name="shared memory", text=f"{text}; give the container more (--shm-size=1g)", verdict="BAD")


def rendering() -> Finding:
    """Which way to draw works here, and why each other does not. Most tasks need none, so none is not in the way."""
    from reverie.environments.rendering.choice import rendering_backend, tried_backends
    from reverie.types import ReverieError

    try:
        tried = tried_backends()
        chosen = rendering_backend()  # for the suites that take their step below
    except ReverieError as error:
        return Finding(name="OpenGL", text=str(error), verdict="--")
    if tried.get(chosen, "not tried") is not None:  # what was remembered could not be written over
        text = f"runs use {chosen}, which does not draw: delete the files rendering-*.json in the cache of reverie"
        return Finding(name="OpenGL", text=text, verdict="--")
    return Finding(
        name="OpenGL", text="; ".join([chosen, *(f"not {name}: {why}" for name, why in tried.items() if why)])
    )


def stepped(tasks: Sequence[str], *, timeout_seconds: float = _STEP_SECONDS) -> Iterator[Finding]:
    """One real step in each task, in a child process, so that a crash or a hang is a finding like any other."""
    from reverie.environments.child_process import NoAnswer, answers
    from reverie.environments.suites import suite_of, tasks_of

    given = answers("reverie.commands.suite_step", tasks, timeout_seconds=timeout_seconds)
    for task, answer in zip(tasks, given, strict=True):
        suite = suite_of(task)
        name = f"suite {suite}"
        if isinstance(answer, NoAnswer):
            yield Finding(name=name, text=f"{task} {answer.why}", verdict="BAD")
        elif answer["info"]["problem"] is not None:
            problem = str(answer["info"]["problem"]).removeprefix(f"{task} ")
            yield Finding(name=name, text=problem, verdict="BAD" if suite in _CORE_SUITES else "--")
        elif answer["failure"] is not None:
            yield Finding(name=name, text=f"{task} fails: {answer['failure']}", verdict="BAD")
        else:
            yield Finding(name=name, text=f"one step in {task}; {len(tasks_of(suite))} tasks")


def _python(found: tuple[int, int, int]) -> Finding:
    text = ".".join(map(str, found))
    if (3, 11) <= found[:2] <= (3, 13):
        return Finding(name="python", text=text)
    return Finding(name="python", text=f"{text}; install 3.11, 3.12 or 3.13", verdict="BAD")


def _torch() -> Iterator[Finding]:
    import torch

    product = float(torch.ones(8).dot(torch.ones(8)))
    text = f"{torch.__version__}, {torch.get_num_threads()} threads"
    yield Finding(name="torch", text=text, verdict="ok" if product == 8.0 else "BAD")
    if not torch.cuda.is_available():
        yield Finding(name="cuda", text="none; training runs on the CPU")
        return
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        text = f"{torch.cuda.get_device_name(index)}, {free / _GIB:.1f} of {total / _GIB:.1f} GiB free"
        yield Finding(name=f"cuda {index}", text=text)


def _extras() -> Iterator[Finding]:
    """Each optional dependency that is no suite; a missing one is no problem, its line says how to get it."""
    from reverie.environments.suites import suite_names

    try:
        lines = requires("reverie") or []
    except PackageNotFoundError:
        yield Finding(name="extras", text="unknown: reverie runs from source and is not installed")
        return
    for line in lines:
        match = re.match(r"([\w.-]+).*extra == ['\"]([\w-]+)['\"]", line)
        if match and match[2] not in (*suite_names(), "all"):
            yield Finding(name=f"extra {match[2]}", text=_installed(package=match[1], extra=match[2]))


def _installed(*, package: str, extra: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"{package} is not installed: pip install 'reverie[{extra}]'"
