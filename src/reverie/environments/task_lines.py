"""What a suite says about one of its tasks: a line of the list of tasks, or that there is no such task."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from reverie.environments.base import Environment, TaskInfo
from reverie.environments.suites import observation_words, space_words
from reverie.types import ReverieError


def described(environment: Environment, *, episode_steps: int | None) -> TaskInfo:
    """The line of a task that was made."""
    return TaskInfo(
        name=environment.task,
        observation=observation_words(environment.spaces),
        action=space_words(environment.spaces.action),
        episode_steps=episode_steps,
        frames_per_step=environment.frames_per_step,
    )


def unavailable(task: str, error: ReverieError) -> TaskInfo:
    """The line of a task that could not be made here."""
    return TaskInfo(name=task, observation="", action="", episode_steps=None, frames_per_step=1, problem=str(error))


def require_task(task: str, names: Sequence[str]) -> None:
    """Refuse a ``task`` that is not among the ``names`` of its suite, and name the one that was probably meant."""
    if task in names:
        return
    by_lower = {name.lower(): name for name in names}
    nearest = difflib.get_close_matches(task.lower(), by_lower, n=1)
    if nearest:
        raise ReverieError(f"There is no task {task}: did you mean {by_lower[nearest[0]]}?")
    suite = task.partition("_")[0]
    raise ReverieError(f"There is no task {task}: the command `tasks {suite}` lists those that exist.")
