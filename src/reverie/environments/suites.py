"""The suites: which there are, which one a task belongs to, and how a space is described in a list."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import pkgutil
import re
from collections.abc import Sequence
from functools import cache
from types import ModuleType

from reverie.types import ReverieError, Space, Spaces

_PACKAGE = "reverie.environments"


@cache
def suite_names() -> list[str]:
    """The modules of `reverie.environments` that define ``task_names``, one per suite."""
    package = importlib.import_module(_PACKAGE)
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__))
    return [name for name in names if "\ndef task_names(" in _source(f"{_PACKAGE}.{name}")]


def suite(name: str) -> ModuleType:
    """The module of a suite. Importing it imports no simulator."""
    return importlib.import_module(f"{_PACKAGE}.{name}")


def suite_of(task: str, *, own: Sequence[str] = ()) -> str:
    """The suite whose name stands before the first "_" or ":" of ``task``.

    ``own`` are the suites of a user beside those of the package. What they call their tasks is their affair: the bare
    name is a task too.
    """
    prefix = re.split("[_:]", task, maxsplit=1)[0]
    known = [*suite_names(), *own]
    if prefix in own or (prefix in known and prefix != task):
        return prefix
    near = difflib.get_close_matches(prefix.lower(), known, n=1, cutoff=0.5)
    hint = f"did you mean the suite {near[0]}?" if near else f"the suites are {', '.join(known)}."
    raise ReverieError(f"There is no task '{task}' (a task is named SUITE_TASK, such as gym_CartPole-v1): {hint}")


def tasks_of(name: str) -> list[str]:
    """Every task of the suite ``name``."""
    return suite(name).task_names()


def example_of(name: str) -> str:
    """The task that stands for the suite ``name``: its own choice, or its first."""
    chosen = getattr(suite(name), "example_task", None)
    return chosen() if chosen is not None else tasks_of(name)[0]


def suite_steps(task: str) -> int:
    """The agent steps of a run on ``task``, where its suite says how long one is."""
    name = suite_of(task)
    steps = getattr(suite(name), "suite_steps", None)
    if steps is None:
        raise ReverieError(
            f"the suite {name} does not say how long a run on {task} is: set training.total_timesteps and "
            "buffer.replay.capacity, or choose an experiment made for that suite."
        )
    return steps(task)


def nearest_task(text: str) -> str | None:
    """The task that looks most like ``text``, with or without its suite; None when none looks like it."""
    names = [task for name in suite_names() for task in tasks_of(name)]
    # People type `cartpol`, not `gym_cartpol`.
    by_lower = {re.split("[_:]", task, maxsplit=1)[-1].lower(): task for task in names}
    by_lower |= {task.lower(): task for task in names}
    found = difflib.get_close_matches(text.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def space_words(space: Space) -> str:
    """In few words: `1 of 5`, `3 times 1 of 2`, `float32 17`, `uint8 64x64x3`."""
    if isinstance(space.classes, tuple):
        few, many = min(space.classes), max(space.classes)
        return f"{len(space.classes)} times 1 of {few if few == many else f'{few} to {many}'}"
    if space.classes is not None:
        return f"1 of {space.classes}"
    return f"{space.dtype} {'x'.join(map(str, space.shape)) or 'scalar'}"


def observation_words(spaces: Spaces) -> str:
    """Every key with its space."""
    return ", ".join(f"{key}: {space_words(space)}" for key, space in spaces.obs.items())


def _source(module: str) -> str:
    """The text of a module: reading is enough, and some modules of the package import torch, which takes seconds."""
    spec = importlib.util.find_spec(module)
    source = getattr(spec.loader, "get_source", None) if spec is not None else None
    return (source(module) if source is not None else None) or ""
