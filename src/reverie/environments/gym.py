"""Suite "gym": every environment that Gymnasium can make, its own and anybody's.

``gym_CartPole-v1`` is a registered id. ``gym:my_package:MyEnv-v0`` imports ``my_package``, which registers the id.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.gym_spaces import ActionWriter, interface_error, obs_readers
from reverie.types import ReverieError, Space, Spaces, Timestep

_EXTRAS = {
    "box2d": "gymnasium[box2d]",
    "mujoco": "gymnasium[mujoco]",
    "phys2d": "gymnasium[jax]",
    "tabular": "gymnasium[jax]",
    "classic_control": "gymnasium[classic-control]",
    "toy_text": "gymnasium[toy-text]",
}
"""What installs the dependencies of Gymnasium's own families, by the folder of their code."""

_MISSING = (gymnasium.error.DependencyNotInstalled, ImportError)


class GymEnvironment(Environment):
    """One Gymnasium environment.

    Observations: a Box of rank 1 becomes float32 under the key "vector", an uint8 Box of shape HxWxC stays as it is
    under "image", any other Box is flattened under "vector", a Discrete becomes int64 from 0 under "discrete"; a Dict
    of these keeps its keys. Actions: a Discrete counts from 0; a bounded Box takes values in [-1, 1], clips them there
    and scales them to its own range. ``action_repeat`` repeats each action and adds up the rewards. ``options`` are
    passed to the environment's constructor.
    """

    def __init__(
        self,
        *,
        task: str,
        resume: Literal["replay", "restart"] = "replay",
        action_repeat: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if resume not in ("replay", "restart"):
            raise ReverieError(f"A Gymnasium environment cannot resume by '{resume}': use 'replay' or 'restart'.")
        if action_repeat < 1:
            raise ReverieError(f"action_repeat is {action_repeat}, but at least 1 is needed.")
        self.task = task
        self.frames_per_step = action_repeat
        self._env = _made(task, dict(options or {}))
        self._is_closed = False
        spec = self._env.spec
        self.resume: Resume = "restart" if spec is not None and spec.nondeterministic else resume
        try:
            _require_gymnasium_reset(self._env, task)
            self._readers = obs_readers(getattr(self._env, "observation_space", None), task)
            self._action = ActionWriter(getattr(self._env, "action_space", None), task)
        except BaseException as error:
            with suppress(Exception):  # the first error is the one to report
                self.close()
            if isinstance(error, ReverieError) or not isinstance(error, Exception):
                raise
            raise ReverieError(_broken_sentence(task, error)) from error
        obs = {key: reader.space for key, reader in self._readers.items()}
        self.spaces = Spaces(obs=obs, action=self._action.space)

    def reset(self, seed: int) -> Timestep:
        result = self._env.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise interface_error(self.task, "reset() must return (observation, info)")
        obs = self._obs(result[0])
        return Timestep(obs=obs, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        native = self._action.native(action)
        observation: Any = None
        total, terminated, truncated = 0.0, False, False
        for _ in range(self.frames_per_step):
            observation, reward, terminated, truncated = self._frame(native)
            total += reward
            if terminated or truncated:
                break
        return Timestep(
            obs=self._obs(observation),
            reward=total,
            is_first=False,
            is_last=terminated or truncated,
            is_terminal=terminated,
        )

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._env.close()

    def _frame(self, native: Any) -> tuple[Any, float, bool, bool]:
        must = "step() must return (observation, reward, terminated, truncated, info)"
        try:
            result = self._env.step(native)
        except ValueError as error:
            # Gymnasium's time limit unpacks the five values itself, and fails like this on the four of the old API.
            if "values to unpack" in str(error):
                raise interface_error(self.task, must) from error
            raise
        if not (isinstance(result, tuple) and len(result) == 5):
            raise interface_error(self.task, must)
        observation, reward, terminated, truncated, _ = result
        return observation, float(reward), bool(terminated), bool(truncated)

    def _obs(self, observation: Any) -> dict[str, np.ndarray]:
        if not isinstance(self._env.observation_space, gymnasium.spaces.Dict):
            return {key: reader.value(observation) for key, reader in self._readers.items()}
        if not isinstance(observation, Mapping) or observation.keys() != self._readers.keys():
            raise interface_error(self.task, f"its observations must have the keys {', '.join(self._readers)}")
        return {key: reader.value(observation[key]) for key, reader in self._readers.items()}


def tasks() -> list[TaskInfo]:
    """Every registered id once, in its latest version, with the reason where it cannot run here."""
    latest: dict[tuple[str | None, str], EnvSpec] = {}
    for spec in gymnasium.registry.values():
        # Gymnasium keeps functions of its own that only raise, in the place of environments that moved elsewhere.
        is_placeholder = getattr(spec.entry_point, "__module__", None) == "gymnasium.envs"
        if spec.entry_point is None or is_placeholder:
            continue
        known = latest.get((spec.namespace, spec.name))
        if known is None or (spec.version or 0) > (known.version or 0):
            latest[spec.namespace, spec.name] = spec
    return [_task_info(spec) for spec in latest.values()]


def _gym_id(task: str) -> str:
    for prefix in ("gym_", "gym:"):
        if task.startswith(prefix) and len(task) > len(prefix):
            return task.removeprefix(prefix)
    raise ReverieError(f"'{task}' is no task of the suite gym: write gym_CartPole-v1, or gym:my_package:MyEnv-v0.")


def _made(task: str, options: dict[str, Any]) -> gymnasium.Env[Any, Any]:
    gym_id = _gym_id(task)
    _import_package(task, gym_id)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hints to developers of environments; what users must know raises
            return gymnasium.make(gym_id, disable_env_checker=True, **options)
    except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
        raise ReverieError(_unknown_sentence(task, gym_id)) from error
    except _MISSING as error:
        package = _missing_package(gym_id, error)
        sentence = f"needs a package that is not installed: run {_install(package)}." if package else ""
        raise ReverieError(f"{task} {sentence or f'cannot be imported: {_one_line(error)}'}") from error
    except Exception as error:  # whatever somebody's constructor raises
        raise ReverieError(_broken_sentence(task, error)) from error


def _import_package(task: str, gym_id: str) -> None:
    module, colon, _ = gym_id.partition(":")
    if not colon:
        return
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


def _unknown_sentence(task: str, gym_id: str) -> str:
    by_lower = {name.lower(): name for name in gymnasium.registry}
    module, colon, name = gym_id.rpartition(":")
    nearest = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    prefix = f"gym:{module}:" if colon else "gym_"
    hint = f"did you mean {prefix}{by_lower[nearest[0]]}?" if nearest else "`reverie tasks` lists those that exist."
    return f"There is no task {task}: {hint}"


def _missing_package(gym_id: str, error: Exception) -> str:
    """What to install so that the environment can be made; empty where nobody knows."""
    spec = gymnasium.registry.get(gym_id.rpartition(":")[2])
    code = spec.entry_point if spec is not None and isinstance(spec.entry_point, str) else ""
    family = code.removeprefix("gymnasium.envs.").partition(".")[0] if code.startswith("gymnasium.envs.") else ""
    return _EXTRAS.get(family) or (getattr(error, "name", None) or "").partition(".")[0]


def _install(package: str) -> str:
    return f'pip install "{package}"'


def _broken_sentence(task: str, error: Exception) -> str:
    detail = f"{type(error).__name__}: {_one_line(error)}".rstrip(".: ")
    return f"{task} could not be made ({detail}): mend the environment or its options."


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _require_gymnasium_reset(env: gymnasium.Env[Any, Any], task: str) -> None:
    parameters = inspect.signature(env.unwrapped.reset).parameters.values()
    if not any(one.name == "seed" or one.kind is one.VAR_KEYWORD for one in parameters):
        raise interface_error(task, "reset() must accept seed=")


def _task_info(spec: EnvSpec) -> TaskInfo:
    name = f"gym_{spec.id}"
    limit = spec.max_episode_steps
    try:
        env = GymEnvironment(task=name)
        env.close()
    except Exception as error:  # one environment that breaks must not cost the list
        problem = _short_problem(spec, error)
        return TaskInfo(name=name, observation="", action="", episode_steps=limit, frames_per_step=1, problem=problem)
    observation = ", ".join(f"{key} {_space_words(space)}" for key, space in env.spaces.obs.items())
    action = _space_words(env.spaces.action)
    return TaskInfo(name=name, observation=observation, action=action, episode_steps=limit, frames_per_step=1)


def _short_problem(spec: EnvSpec, error: Exception) -> str:
    """What is in the way, for a list that already names the task."""
    if isinstance(error.__cause__, _MISSING) and (package := _missing_package(spec.id, error.__cause__)):
        return _install(package)
    if not isinstance(error, ReverieError):
        return f"{type(error).__name__}: {_one_line(error)}"
    sentence = str(error).removeprefix(f"gym_{spec.id} ")
    problem, end, _ = sentence.rpartition("): ")  # the advice after it is for who makes the task
    return f"{problem})" if end else sentence


def _space_words(space: Space) -> str:
    return f"1 of {space.classes}" if space.is_discrete else f"{space.dtype} {'x'.join(map(str, space.shape))}"
