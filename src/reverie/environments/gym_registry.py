"""Finds what Gymnasium has registered, makes it, and says in one sentence why it cannot be made."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

from reverie.environments.gym_spaces import interface_error
from reverie.types import ReverieError

_EXTRAS = {
    "box2d": "gymnasium[box2d]",
    "mujoco": "gymnasium[mujoco]",
    "phys2d": "gymnasium[jax]",
    "tabular": "gymnasium[jax]",
    "classic_control": "gymnasium[classic-control]",
    "toy_text": "gymnasium[toy-text]",
}
"""What installs the dependencies of Gymnasium's own families, by the folder of their code."""

_NOT_INSTALLED = "needs a package that is not installed: run "
_MISSING = (gymnasium.error.DependencyNotInstalled, ImportError)


def registered_ids() -> list[str]:
    """Every id of Gymnasium's own once, in its latest version."""
    latest: dict[tuple[str | None, str], EnvSpec] = {}
    for spec in gymnasium.registry.values():
        # What else is registered depends on what was imported before. Functions stand for environments that moved away.
        if not isinstance(spec.entry_point, str) or not spec.entry_point.startswith("gymnasium.envs."):
            continue
        known = latest.get((spec.namespace, spec.name))
        if known is None or (spec.version or 0) > (known.version or 0):
            latest[spec.namespace, spec.name] = spec
    return [spec.id for spec in latest.values()]


def gym_id(task: str) -> str:
    """What Gymnasium calls ``task``."""
    for prefix in ("gym_", "gym:"):
        if task.startswith(prefix) and len(task) > len(prefix):
            return task.removeprefix(prefix)
    raise ReverieError(f"'{task}' is no task of the suite gym: write gym_CartPole-v1, or gym:my_package:MyEnv-v0.")


def made(task: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment itself, with Gymnasium's time limit around it where its registration sets one."""
    name = gym_id(task)
    _import_package(task, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints to developers of environments; what users must know raises
            return gymnasium.make(name, disable_env_checker=True, **options)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ReverieError(_unknown_sentence(task, name)) from error
    except _MISSING as error:
        package = _missing_package(name, error)
        detail = f'{_NOT_INSTALLED}pip install "{package}".' if package else f"cannot be imported: {_one_line(error)}"
        raise ReverieError(f"{task} {detail}") from error
    except Exception as error:  # whatever somebody's constructor raises
        raise broken(task, error) from error


def require_seeded_reset(env: gymnasium.Env[Any, Any], task: str) -> None:
    """Refuses an environment of the old interface, whose episodes no seed decides."""
    parameters = inspect.signature(env.unwrapped.reset).parameters.values()
    if not any(one.name == "seed" or one.kind is one.VAR_KEYWORD for one in parameters):
        raise interface_error(task, "reset() must accept seed=")


def broken(task: str, error: Exception) -> ReverieError:
    """The error for an environment whose own code failed while it was made."""
    detail = f"{type(error).__name__}: {_one_line(error)}".rstrip(".: ")
    return ReverieError(f"{task} could not be made ({detail}): mend the environment or its options.")


def problem_of(task: str, error: Exception) -> str:
    """What is in the way of ``task``, for a list that already names the task."""
    if not isinstance(error, ReverieError):
        return f"{type(error).__name__}: {_one_line(error)}"
    sentence = str(error).removeprefix(f"{task} ")
    _, is_missing, command = sentence.partition(_NOT_INSTALLED)
    if is_missing:
        return command.removesuffix(".")
    problem, end, _ = sentence.rpartition("): ")  # the advice after it is for who makes the task
    return f"{problem})" if end else sentence


def _import_package(task: str, name: str) -> None:
    module, colon, _ = name.partition(":")
    if not colon:
        return
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)  # `python -m` looks there too; a package beside the user must not need PYTHONPATH
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ReverieError(
            f"{task} needs the package {module}, which could not be imported ({_one_line(error)}): install it or add "
            "its folder to PYTHONPATH."
        ) from error
    except Exception as error:  # a package may fail in any way while it is imported
        detail = f"{type(error).__name__}: {_one_line(error)}"
        raise ReverieError(f"{task} needs the package {module}, which fails on import ({detail}): mend it.") from error


def _unknown_sentence(task: str, name: str) -> str:
    package, colon, own_id = name.rpartition(":")
    own = [known for known, spec in gymnasium.registry.items() if _entry_package(spec) == package.partition(".")[0]]
    if colon and not own:
        return (
            f"There is no task {task}: importing {package} registers no environment; call "
            f'gymnasium.register("{own_id}", entry_point=...) in {package}.'
        )
    by_lower = {known.lower(): known for known in (own if colon else gymnasium.registry)}
    nearest = difflib.get_close_matches(own_id.lower(), by_lower, n=1, cutoff=0.5)
    prefix = f"gym:{package}:" if colon else "gym_"
    if nearest:
        return f"There is no task {task}: did you mean {prefix}{by_lower[nearest[0]]}?"
    hint = f"{package} registers {', '.join(own)}." if colon else "the command `tasks gym` lists those that exist."
    return f"There is no task {task}: {hint}"


def _entry_package(spec: EnvSpec) -> str:
    entry = spec.entry_point
    return (entry if isinstance(entry, str) else getattr(entry, "__module__", "")).partition(":")[0].partition(".")[0]


def _missing_package(name: str, error: BaseException) -> str:
    """What to install so that the environment can be made; empty where nobody knows."""
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    code = spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else ""
    family = code.removeprefix("gymnasium.envs.").partition(".")[0] if code.startswith("gymnasium.envs.") else ""
    return _EXTRAS.get(family) or (getattr(error, "name", None) or "").partition(".")[0]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
