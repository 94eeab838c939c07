"""Suite "gym": every environment that Gymnasium can make, its own and anybody's.

``gym_CartPole-v1`` is a registered id. ``gym:my_package:MyEnv-v0`` imports ``my_package``, which registers the id.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Literal

import numpy as np

from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.task_lines import described, unavailable
from reverie.types import ReverieError, Spaces, Timestep

_FIVE_VALUES = "step() must return (observation, reward, terminated, truncated, info)"


class GymEnvironment(Environment):
    """One Gymnasium environment.

    Observations: bytes of 2, 3 or 4 axes become an image of shape HxWxC, floats of 3 axes in [0, 1] or [0, 255] too;
    every other Box is flattened to a float32 vector; Discrete, MultiDiscrete and MultiBinary become int64 from 0. A
    single space has the key of its kind ("image", "vector", "discrete"), a Dict keeps its names, a Tuple counts.
    Actions: discrete ones count from 0; a bounded Box takes values in [-1, 1], clips them there and scales them to its
    own range. ``action_repeat`` repeats each action and adds up the rewards. ``options`` are passed to the
    environment's constructor.
    """

    def __init__(
        self,
        *,
        task: str,
        resume: Literal["replay", "restart"] = "replay",
        action_repeat: int = 1,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        from reverie.environments import gym_registry
        from reverie.environments.gym_actions import ActionWriter
        from reverie.environments.gym_spaces import ObsReader

        if resume not in ("replay", "restart"):
            raise ReverieError(f"A Gymnasium environment cannot resume by '{resume}': use 'replay' or 'restart'.")
        if action_repeat < 1:
            raise ReverieError(f"action_repeat is {action_repeat}, but at least 1 is needed.")
        self.task = task
        self.frames_per_step = action_repeat
        self.native = gym_registry.made(task, dict(options or {}))
        """The simulator itself."""
        self._is_closed = False
        spec = self.native.spec
        self.resume: Resume = "restart" if spec is not None and spec.nondeterministic else resume
        try:
            gym_registry.require_seeded_reset(self.native, task)
            self._obs = ObsReader(getattr(self.native, "observation_space", None), task)
            self._action = ActionWriter(getattr(self.native, "action_space", None), task)
        except BaseException as error:
            with suppress(Exception):  # the first error is the one to report
                self.close()
            if isinstance(error, ReverieError) or not isinstance(error, Exception):
                raise
            raise gym_registry.broken(task, error) from error
        self.spaces = Spaces(obs=self._obs.spaces, action=self._action.space)

    def reset(self, seed: int) -> Timestep:
        result = self.native.reset(seed=seed)
        if not (isinstance(result, tuple) and len(result) == 2):
            raise _interface_error(self.task, "reset() must return (observation, info)")
        obs = self._obs.values(result[0])
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
            obs=self._obs.values(observation),
            reward=total,
            is_first=False,
            is_last=terminated or truncated,
            is_terminal=terminated,
        )

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self.native.close()

    def native_action(self, action: np.ndarray) -> Any:
        """What the simulator itself is given for ``action``."""
        return self._action.native(action)

    def _frame(self, native: Any) -> tuple[Any, float, bool, bool]:
        try:
            result = self.native.step(native)
        except ValueError as error:
            # Gymnasium's time limit unpacks the five values itself, and fails like this on the four of the old API.
            if "values to unpack" in str(error):
                raise _interface_error(self.task, _FIVE_VALUES) from error
            raise
        if not (isinstance(result, tuple) and len(result) == 5):
            raise _interface_error(self.task, _FIVE_VALUES)
        observation, reward, terminated, truncated, _ = result
        try:
            return observation, float(reward), bool(terminated), bool(truncated)
        except (TypeError, ValueError) as error:
            given = f"reward {reward!r}, terminated {terminated!r}, truncated {truncated!r}"
            raise _interface_error(self.task, f"step() must give a number and two booleans, not {given}") from error


def task_names() -> list[str]:
    """Every id that Gymnasium itself registers, in its latest version."""
    from reverie.environments import gym_registry

    return [f"gym_{name}" for name in gym_registry.registered_ids()]


def example_task() -> str:
    return "gym_CartPole-v1"


def task_info(task: str) -> TaskInfo:
    """One task, which is made for it; one that breaks is described all the same, with its problem."""
    from reverie.environments import gym_registry

    try:
        env = GymEnvironment(task=task)
        env.close()
    except Exception as error:  # one environment that breaks must not cost the list
        return unavailable(task, ReverieError(gym_registry.problem_of(task, error)))
    return described(env, episode_steps=env.native.spec.max_episode_steps if env.native.spec is not None else None)


def _interface_error(task: str, detail: str) -> ReverieError:
    from reverie.environments.gym_spaces import interface_error

    return interface_error(task, detail)
