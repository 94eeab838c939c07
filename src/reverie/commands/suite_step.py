"""One real step in a task as a run would make it, for `reverie doctor`: in a child process, which may crash or hang."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any


def answer(task: str) -> dict[str, Any]:
    """In the child: the task's TaskInfo, and ``failure``, which is None after the step, else a sentence."""
    from reverie.environments.suites import suite, suite_of

    info = suite(suite_of(task)).task_info(task)
    failure = None
    if info.problem is None:
        try:
            _take_step(task)
        except Exception as error:  # whatever a simulator raises is the finding
            failure = f"{type(error).__name__}: {' '.join(str(error).split())}".removeprefix("ReverieError: ")
    return {"info": asdict(info), "failure": failure}


def _take_step(task: str) -> None:
    import torch

    from reverie.build import environments
    from reverie.commands.composition import IN_WORKERS, composed
    from reverie.types import ReverieError

    envs = environments(composed(task, [IN_WORKERS]), num_envs=1, seed=0, allow=None)
    try:
        envs.observe()
        space = envs.spaces.action
        envs.step(torch.zeros((1, *space.shape), dtype=torch.float32 if space.dtype == "float32" else torch.int64))
        for notice in envs.notices():  # a run would start the simulator again and go on
            raise ReverieError(notice)
    finally:
        envs.close()
