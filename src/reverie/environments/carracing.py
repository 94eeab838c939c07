"""Suite "carracing": Gymnasium's CarRacing-v3, as ``carracing_continuous`` or ``carracing_discrete``."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from reverie.environments.actions import class_index, clipped
from reverie.environments.base import Environment, Resume, TaskInfo, simulator_package
from reverie.environments.carracing_road import quick_car_racing
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep, require

_SIDE = 96
_ROAD_ROWS = 84
"""Rows of the screen above the dashboard."""


class CarracingEnvironment(Environment):
    """One car on a random track, seen from above.

    The image is the screen without the dashboard, unless ``has_dashboard``, resized to ``size`` x ``size``. Continuous
    actions are steering, gas and brake, each in [-1, 1]; gas and brake are scaled to [0, 1]. Discrete ones are nothing,
    right, left, gas, brake. ``episode_frames`` is the time limit; a finished lap and leaving the field are true ends.
    """

    resume: Resume = "replay"

    def __init__(
        self,
        *,
        task: str,
        size: int = 64,
        has_dashboard: bool = False,
        action_repeat: int = 1,
        episode_frames: int = 1000,
    ) -> None:
        require_task(task, task_names())
        require("environment.simulator.action_repeat", action_repeat, at_least=1)
        require("environment.simulator.episode_frames", episode_frames, at_least=1)
        self.task = task
        self.frames_per_step = action_repeat
        self.episode_steps = -(-episode_frames // action_repeat)
        self._episode_frames = episode_frames
        self._image = road_image(size=size, has_dashboard=has_dashboard, task=task)
        self._is_continuous = task == "carracing_continuous"
        self._has_dashboard = has_dashboard
        self._env = _car_racing(task, is_quick=not has_dashboard)(continuous=self._is_continuous)
        image = Space(shape=(size, size, 3), dtype="uint8")
        discrete = Space(shape=(), dtype="int64", classes=5)
        action = Space(shape=(3,), dtype="float32") if self._is_continuous else discrete
        self.spaces = Spaces(obs={"image": image}, action=action)
        self._frames = 0
        self._screen: Any = None
        """What the game showed last; nothing where the road alone is drawn."""

    def reset(self, seed: int) -> Timestep:
        return self._drawn(self._begun(seed))

    def step(self, action: np.ndarray) -> Timestep:
        return self._drawn(self._driven(action))

    def replay(self, seed: int, actions: np.ndarray) -> Timestep:
        """Without a dashboard only the last image is drawn: drawing takes most of the time and changes nothing."""
        timestep = self._begun(seed)
        for action in actions:
            if timestep.is_last:
                break
            timestep = self._driven(np.array(action))
        return self._drawn(timestep)

    def _begun(self, seed: int) -> Timestep:
        self._screen, _ = self._env.reset(seed=seed)
        self._frames = 0
        return Timestep(obs={}, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def _driven(self, action: np.ndarray) -> Timestep:
        native = pedals(action) if self._is_continuous else class_index(action, self.spaces.action.dim)
        info: dict[str, Any] = {}
        total, is_last, is_terminal = 0.0, False, False
        for _ in range(self.frames_per_step):
            self._screen, reward, is_terminal, _, info = self._env.step(native)
            total += float(reward)
            self._frames += 1
            is_last = is_terminal or self._frames >= self._episode_frames
            if is_last:
                break
        return Timestep(
            obs={},
            reward=total,
            is_first=False,
            is_last=is_last,
            is_terminal=is_terminal,
            scores={"lap_finished": float(info.get("lap_finished", False))} if is_last else {},
        )

    def _drawn(self, timestep: Timestep) -> Timestep:
        """With its image. The whole screen is drawn by the game at every frame, the road alone only here."""
        screen = self._screen if self._has_dashboard else self._env.draw_road()
        return replace(timestep, obs={"image": self._image(screen)})

    def close(self) -> None:
        self._env.close()


def road_image(*, size: int, has_dashboard: bool, task: str) -> Callable[[np.ndarray], np.ndarray]:
    """From the screen to what the agent sees, a fresh array."""
    require("environment.simulator.size", size, at_least=8)
    rows = _SIDE if has_dashboard else _ROAD_ROWS
    pillow = simulator_package("PIL.Image", task=task, extra="carracing")
    filter_ = pillow.Resampling.BILINEAR
    if (rows, _SIDE) == (size, size):
        return np.array
    # Pillow wants its rows in memory order; pygame gives a transposed view.
    return lambda screen: np.array(pillow.fromarray(np.ascontiguousarray(screen[:rows])).resize((size, size), filter_))


def _car_racing(task: str, *, is_quick: bool) -> Any:
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # or it greets on the standard output
    for module in ("Box2D", "pygame"):  # Gymnasium reports them by an error of its own
        simulator_package(module, task=task, extra="carracing")
    if is_quick:
        return quick_car_racing(task)
    return simulator_package("gymnasium.envs.box2d.car_racing", task=task, extra="carracing").CarRacing


def task_names() -> list[str]:
    return ["carracing_continuous", "carracing_discrete"]


def task_info(task: str) -> TaskInfo:
    try:
        environment = CarracingEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    return described(environment, episode_steps=environment.episode_steps)


def pedals(action: np.ndarray) -> np.ndarray:
    """Steering, gas and brake in the simulator's ranges, from [-1, 1]; the last axis has these three."""
    given = clipped(action).astype(np.float32)
    return np.concatenate([given[..., :1], (given[..., 1:] + 1.0) / 2.0], axis=-1)
