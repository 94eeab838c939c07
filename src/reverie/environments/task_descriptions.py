"""Tasks described without risk: each simulator is made in a child process."""

from __future__ import annotations

import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from reverie.environments.base import TaskInfo
from reverie.environments.child_process import NoAnswer, answers
from reverie.environments.suites import suite, suite_of
from reverie.runtime.processors import usable_processors

TIMEOUT_SECONDS = 60.0
"""How long one task may take; the first of a suite also imports its simulator."""

_FEWEST_PER_CHILD = 12


def descriptions(tasks: Sequence[str], *, timeout_seconds: float = TIMEOUT_SECONDS) -> Generator[TaskInfo, None, None]:
    """Each task, those of one suite together. Several child processes work at the same time.

    Whoever leaves early, with Ctrl-C for example, ends them all at once.
    """
    cores = usable_processors()
    pool = ThreadPoolExecutor(cores)
    stop = threading.Event()
    try:
        for infos in pool.map(lambda chunk: _described(chunk, timeout_seconds, stop), _chunks(tasks, cores)):
            yield from infos
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def answer(task: str) -> dict[str, Any]:
    """In the child: the fields of the task's TaskInfo."""
    return asdict(suite(suite_of(task)).task_info(task))


def _described(tasks: Sequence[str], timeout_seconds: float, stop: threading.Event) -> list[TaskInfo]:
    given = answers(__name__, tasks, timeout_seconds=timeout_seconds, stop=stop)
    return [
        _unknown(task, one.why) if isinstance(one, NoAnswer) else TaskInfo(**one)
        for task, one in zip(tasks, given, strict=True)
    ]


def _unknown(task: str, problem: str) -> TaskInfo:
    return TaskInfo(name=task, observation="", action="", episode_steps=None, frames_per_step=1, problem=problem)


def _chunks(tasks: Sequence[str], cores: int) -> list[list[str]]:
    """One child's tasks belong to one suite; a large suite is shared by as many children as there are cores."""
    by_suite: dict[str, list[str]] = {}
    for task in tasks:
        by_suite.setdefault(suite_of(task), []).append(task)
    chunks: list[list[str]] = []
    for same in by_suite.values():
        size = max(_FEWEST_PER_CHILD, -(-len(same) // cores))
        chunks += [same[start : start + size] for start in range(0, len(same), size)]
    return chunks
