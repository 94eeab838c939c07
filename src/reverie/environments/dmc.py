"""Suite "dmc": every task of the DeepMind Control Suite, from its own state, from pixels, or from both."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from reverie.environments.actions import require_finite
from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.dmc_shortcuts import take_shortcuts
from reverie.environments.rendering.choice import blind_package, drawing_package, first_drawing
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep, require, require_choice

Kind = Literal["proprio", "vision", "both"]

_TASKS: dict[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
"""By domain, as dm_control 1.0.28 has them; written here so that listing them needs no simulator."""
_BY_NAME = {f"dmc_{domain}_{task}": (domain, task) for domain, tasks in _TASKS.items() for task in tasks}
_CAMERAS = {"quadruped": 2}
"""The published protocols look through camera 0 everywhere else."""
_NO_SHADOWS = {"shadow": False, "reflection": False}
_UNLIMITED = 1e9
"""dm_control gives actuators without limits a range of 1e10, to which no action can be scaled."""


class DmcEnvironment(Environment):
    """One task of the Control Suite.

    ``proprio`` gives each of the task's own observations as a float32 vector, ``vision`` the picture of ``camera``
    (-1: the one the published protocols use) with the last ``frame_stack`` pictures behind each other along the
    channels, ``both`` gives both. Rewards of repeated actions add up. The limit of 1000 frames is not terminal.
    """

    resume: Resume = "replay"
    needs_rendering: ClassVar[bool] = True

    def __init__(
        self,
        *,
        task: str,
        observation: Kind = "proprio",
        action_repeat: int = 1,
        size: int = 64,
        camera: int = -1,
        frame_stack: int = 1,
        shadows: bool = True,
    ) -> None:
        require_task(task, task_names())
        require_choice("observation", observation, get_args(Kind))
        require("action_repeat", action_repeat, at_least=1)
        require("frame_stack", frame_stack, at_least=1)
        self.task, self.frames_per_step = task, action_repeat
        domain, _ = _BY_NAME[task]
        self._env: Any = _loaded(task, is_drawn=observation != "proprio")
        self._is_proprio, self._is_drawn = observation != "vision", observation != "proprio"
        self._size, self._flags = size, None if shadows else _NO_SHADOWS
        self._camera = _CAMERAS.get(domain, 0) if camera == -1 else camera
        _require_view(self._env.physics.model, camera=self._camera, size=size)
        self._frames: deque[np.ndarray] = deque(maxlen=frame_stack)
        self._low, high = _action_range(self._env.action_spec())
        self._scale = (high - self._low) / 2.0
        self._one = np.ones_like(self._low)  # an array: a number would leave an action of float32 in float32
        self._top = np.minimum(self._low + self._scale * 2.0, high)
        self.spaces = Spaces(obs=self._obs_spaces(frame_stack), action=Space(shape=self._low.shape, dtype="float32"))
        if self._is_drawn:
            with first_drawing(task):
                self._picture()

    @property
    def episode_steps(self) -> int | None:
        """The time limit in agent steps; None where the task has none."""
        frames = self._env._step_limit
        return None if math.isinf(frames) else math.ceil(math.ceil(frames) / self.frames_per_step)

    def reset(self, seed: int) -> Timestep:
        return self._reset(seed, is_seen=True)

    def step(self, action: np.ndarray) -> Timestep:
        return self._step(action, is_seen=True)

    def replay(self, seed: int, actions: np.ndarray) -> Timestep:
        """Draws only the frames that the last observation shows."""
        unseen = len(actions) - (self._frames.maxlen or 1)
        timestep = self._reset(seed, is_seen=unseen < 0)
        for index, action in enumerate(actions):
            if timestep.is_last:
                break
            timestep = self._step(np.array(action), is_seen=index >= unseen)
        return timestep

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _reset(self, seed: int, *, is_seen: bool) -> Timestep:
        self._env.task.random.seed(seed)
        native = self._env.reset()
        self._frames.clear()
        obs = self._obs(native.observation, is_seen=is_seen)
        return Timestep(obs=obs, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def _step(self, action: np.ndarray, *, is_seen: bool) -> Timestep:
        require_finite(action)
        # The arithmetic of dm_control's own action_scale, so that the bits agree with those who use it; clipped after
        # it and not before, which gives the same bits because each operation keeps the order of its operands.
        scaled = np.minimum(np.maximum(self._low + self._scale * (action + self._one), self._low), self._top)
        native = self._env.step(scaled)
        reward, is_last = native.reward, native.last()
        for _ in range(self.frames_per_step - 1):
            if is_last:
                break
            native = self._env.step(scaled)
            reward, is_last = reward + native.reward, native.last()
        return Timestep(
            obs=self._obs(native.observation, is_seen=is_seen),
            reward=float(reward),
            is_first=False,
            is_last=is_last,
            is_terminal=is_last and native.discount == 0.0,
        )

    def _obs(self, native: Mapping[str, Any], *, is_seen: bool) -> dict[str, np.ndarray]:
        obs: dict[str, np.ndarray] = {}
        if self._is_proprio:
            obs = {key: np.array(value, np.float32).ravel() for key, value in native.items()}
        if self._is_drawn and is_seen:
            self._frames.append(self._picture())
            missing = (self._frames.maxlen or 1) - len(self._frames)
            # Before an episode had enough frames, its first one stands for those that are missing.
            obs["image"] = np.concatenate([self._frames[0]] * missing + list(self._frames), axis=2)
        return obs

    def _picture(self) -> np.ndarray:
        return self._env.physics.render(
            self._size, self._size, camera_id=self._camera, render_flag_overrides=self._flags
        )

    def _obs_spaces(self, frame_stack: int) -> dict[str, Space]:
        spaces: dict[str, Space] = {}
        if self._is_proprio:
            for key, spec in self._env.observation_spec().items():
                spaces[key] = Space(shape=(int(np.prod(spec.shape)),), dtype="float32")
        if self._is_drawn:
            spaces["image"] = Space(shape=(self._size, self._size, 3 * frame_stack), dtype="uint8")
        return spaces


def task_names() -> list[str]:
    """Every task of the suite."""
    return list(_BY_NAME)


def example_task() -> str:
    return "dmc_walker_walk"


def task_info(task: str) -> TaskInfo:
    """What the task looks like from its own state."""
    try:
        environment = DmcEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    info = described(environment, episode_steps=environment.episode_steps)
    environment.close()
    return info


def _loaded(task: str, *, is_drawn: bool) -> Any:
    # The bowl of this task is uploaded to OpenGL at every reset, whether anybody looks or not.
    package = drawing_package if is_drawn or task == "dmc_quadruped_escape" else blind_package
    suite = package("dm_control.suite", task=task, extra="dmc")
    if not hasattr(np, "in1d"):
        # dm_control 1.0.28 calls it for the quadruped, and numpy 2.4 has dropped the old name of isin.
        setattr(np, "in1d", np.isin)  # noqa: B010, pyright knows that the name is gone
    # The random springs of lqr are drawn when it is made, so this seed makes the same system every time.
    env = suite.load(*_BY_NAME[task], task_kwargs={"random": 0})
    take_shortcuts(env.physics)
    return env


def _action_range(spec: Any) -> tuple[np.ndarray, np.ndarray]:
    low, high = np.array(spec.minimum, dtype=np.float64), np.array(spec.maximum, dtype=np.float64)
    return np.where(low < -_UNLIMITED, -1.0, low), np.where(high > _UNLIMITED, 1.0, high)


def _require_view(model: Any, *, camera: int, size: int) -> None:
    require("camera", camera, at_least=0, at_most=int(model.ncam) - 1)
    require("size", size, at_least=1, at_most=min(int(model.vis.global_.offwidth), int(model.vis.global_.offheight)))
