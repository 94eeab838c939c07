"""Suite "metaworld": the fifty tasks of a robot arm on a table, in their version 3 (McLean et al. 2025)."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.rendering.choice import blind_package, drawing_package, first_drawing
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep, require

# fmt: off
_NAMES = (
    "assembly", "basketball", "bin-picking", "box-close", "button-press-topdown", "button-press-topdown-wall",
    "button-press", "button-press-wall", "coffee-button", "coffee-pull", "coffee-push", "dial-turn", "disassemble",
    "door-close", "door-lock", "door-open", "door-unlock", "hand-insert", "drawer-close", "drawer-open",
    "faucet-open", "faucet-close", "hammer", "handle-press-side", "handle-press", "handle-pull-side", "handle-pull",
    "lever-pull", "pick-place-wall", "pick-out-of-hole", "pick-place", "plate-slide", "plate-slide-side",
    "plate-slide-back", "plate-slide-back-side", "peg-insert-side", "peg-unplug-side", "soccer", "stick-push",
    "stick-pull", "push", "push-wall", "push-back", "reach", "reach-wall", "shelf-place", "sweep-into", "sweep",
    "window-open", "window-close",
)
# fmt: on
"""As metaworld 3.1 has them; written here so that listing them needs no simulator."""
_CAMERAS = ("topview", "corner", "corner2", "corner3", "corner4", "behindGripper", "gripperPOV")
_LONGEST = 500
"""Frames after which the simulator itself refuses to go on."""
_LARGEST = 480
"""Pixels of a side: the height of the buffer that the simulator draws into."""
_STATE_DIM = 39
_ACTION_DIM = 4


class MetaworldEnvironment(Environment):
    """One task with a new goal, and new places of its objects, for each seed.

    ``state`` gives the 39 numbers of the simulator with the goal in them under the key "vector", ``vision`` the
    picture of ``camera``, ``both`` gives both. Rewards of repeated actions add up. Nothing is terminal. The scores are
    ``success``, reached at any frame of the episode, and ``final_success``, reached at its last one.
    """

    resume: Resume = "replay"
    needs_rendering: ClassVar[bool] = True

    def __init__(
        self,
        *,
        task: str,
        observation: Literal["state", "vision", "both"] = "state",
        action_repeat: int = 2,
        episode_steps: int = 100,
        size: int = 64,
        camera: str = "corner4",
    ) -> None:
        require_task(task, task_names())
        _require_choices(observation, camera)
        require("action_repeat", action_repeat, at_least=1)
        require("episode_steps", episode_steps, at_least=1, at_most=_LONGEST // action_repeat)
        require("size", size, at_least=1, at_most=_LARGEST)
        self.task, self.frames_per_step, self.episode_steps = task, action_repeat, episode_steps
        self._has_state, self._is_drawn = observation != "vision", observation != "state"
        self._size, self._camera = size, camera
        self._env, self._mujoco = _loaded(task, is_drawn=self._is_drawn)
        self._renderer: Any = None
        self._steps, self._was_successful = 0, False
        obs: dict[str, Space] = {}
        if self._has_state:
            obs["vector"] = Space(shape=(_STATE_DIM,), dtype="float32")
        if self._is_drawn:
            obs["image"] = Space(shape=(size, size, 3), dtype="uint8")
            with first_drawing(task):
                self._picture()
        self.spaces = Spaces(obs=obs, action=Space(shape=(_ACTION_DIM,), dtype="float32"))

    def reset(self, seed: int) -> Timestep:
        return self._reset(seed, is_seen=True)

    def step(self, action: np.ndarray) -> Timestep:
        return self._step(action, is_seen=True)

    def replay(self, seed: int, actions: np.ndarray) -> Timestep:
        """Draws the last image only."""
        timestep = self._reset(seed, is_seen=len(actions) == 0)
        for index, action in enumerate(actions):
            if timestep.is_last:
                break
            timestep = self._step(np.array(action), is_seen=index == len(actions) - 1)
        return timestep

    def close(self) -> None:
        if self._renderer is not None:
            self._renderer.close()
            self._renderer = None
        self._env.close()

    def _reset(self, seed: int, *, is_seen: bool) -> Timestep:
        self._steps, self._was_successful = 0, False
        self._env.seed(seed)
        self._env._freeze_rand_vec = False  # a new goal, which `_hold_the_first_draw` then holds
        state, _ = self._env.reset()
        if self._is_drawn and is_seen:
            # The goal was moved after the last computation of positions; this one changes no force and no speed.
            self._mujoco.mj_kinematics(self._env.model, self._env.data)
        obs = self._obs(state, is_seen=is_seen)
        return Timestep(obs=obs, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def _step(self, action: np.ndarray, *, is_seen: bool) -> Timestep:
        if not np.isfinite(action).all():
            raise ValueError(f"the action {action} is not finite")
        clipped = np.minimum(np.maximum(action, -1.0), 1.0)
        total, state, is_successful = 0.0, None, False
        for _ in range(self.frames_per_step):
            state, reward, _, _, info = self._env.step(clipped)
            total += float(reward)
            is_successful = bool(info["success"])
            self._was_successful |= is_successful
        assert state is not None
        self._steps += 1
        is_last = self._steps == self.episode_steps
        scores = {"success": float(self._was_successful), "final_success": float(is_successful)}
        return Timestep(
            obs=self._obs(state, is_seen=is_seen),
            reward=total,
            is_first=False,
            is_last=is_last,
            is_terminal=False,
            scores=scores if is_last else {},
        )

    def _obs(self, state: np.ndarray, *, is_seen: bool) -> dict[str, np.ndarray]:
        obs: dict[str, np.ndarray] = {}
        if self._has_state:
            obs["vector"] = np.array(state, dtype=np.float32)
        if self._is_drawn and is_seen:
            obs["image"] = self._picture()
        return obs

    def _picture(self) -> np.ndarray:
        if self._renderer is None:
            self._renderer = self._mujoco.Renderer(self._env.model, self._size, self._size)
        self._renderer.update_scene(self._env.data, camera=self._camera)
        picture = self._renderer.render()
        # The corner cameras hang upside down.
        return np.array(picture[::-1, ::-1] if self._camera.startswith("corner") else picture)


def task_names() -> list[str]:
    """Every task of the suite."""
    return [f"metaworld_{name}-v3" for name in _NAMES]


def example_task() -> str:
    return "metaworld_reach-v3"


def task_info(task: str) -> TaskInfo:
    """What the task looks like from its state."""
    try:
        environment = MetaworldEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    environment.close()
    return described(environment, episode_steps=environment.episode_steps)


def _loaded(task: str, *, is_drawn: bool) -> tuple[Any, Any]:
    package = drawing_package if is_drawn else blind_package
    classes = package("metaworld.env_dict", task=task, extra="metaworld").ALL_V3_ENVIRONMENTS_GOAL_OBSERVABLE
    environment = classes[f"{task.removeprefix('metaworld_')}-goal-observable"](seed=0)
    environment.seeded_rand_vec = True  # goals are drawn from the generator that `seed` sets
    _hold_the_first_draw(environment)
    return environment, package("mujoco", task=task, extra="metaworld")


def _hold_the_first_draw(environment: Any) -> None:
    """Metaworld's reset lays the table twice. With a draw for each, the first observation would tell where the first
    draw had put the objects; the benchmark itself sets one draw beforehand, to the same effect as this."""
    lay_table = environment.reset_model

    def lay_table_and_hold() -> np.ndarray:
        state = lay_table()
        environment._freeze_rand_vec = True
        return state

    environment.reset_model = lay_table_and_hold


def _require_choices(observation: str, camera: str) -> None:
    if observation not in ("state", "vision", "both"):
        raise ReverieError(f"`observation` must be state, vision or both, got {observation}.")
    if camera not in _CAMERAS:
        raise ReverieError(f"`camera` must be one of {', '.join(_CAMERAS)}, got {camera}.")
