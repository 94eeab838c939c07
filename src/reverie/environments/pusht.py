"""Suite "pusht": push a T-shaped block onto its place (Chi et al. 2023, "Diffusion Policy")."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from reverie.environments.base import Environment, Resume, TaskInfo, simulator_package
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep, require

_TASKS = ("pusht_state", "pusht_pixels")
_WINDOW = 512
"""The side of the table, in the simulator's own units; actions are places on it."""


class PushTEnvironment(Environment):
    """Reward is the share of the goal that the block covers, over 0.95 and at most 1.

    ``pusht_state`` sees five numbers: the place of the agent, the place of the block, the block's angle.
    ``pusht_pixels`` sees an image of ``size`` pixels and the place of the agent. An action is the place on the table
    that the agent is drawn to for a tenth of a second. More than 95 % coverage is terminal; the limit of
    ``episode_steps`` is not. With the last observation come the scores of record: the highest reward of the episode
    and whether it ended in success.
    """

    resume: Resume = "replay"
    frames_per_step = 1

    def __init__(self, *, task: str, size: int = 96, episode_steps: int = 300) -> None:
        require_task(task, _TASKS)
        require("size", size, at_least=1)
        require("episode_steps", episode_steps, at_least=1)
        self.task = task
        self.episode_steps = episode_steps
        self._has_pixels = task == "pusht_pixels"
        kind = "pixels_agent_pos" if self._has_pixels else "state"
        self._env = _made(task, obs_type=kind, observation_width=size, observation_height=size)
        self._steps = 0
        self._best = 0.0
        image = Space(shape=(size, size, 3), dtype="uint8")
        place = Space(shape=(2,), dtype="float32")
        obs = {"image": image, "agent": place} if self._has_pixels else {"vector": Space(shape=(5,), dtype="float32")}
        self.spaces = Spaces(obs=obs, action=place)

    def reset(self, seed: int) -> Timestep:
        native, _ = self._env.reset(seed=seed)
        self._steps, self._best = 0, 0.0
        return Timestep(obs=self._obs(native), reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        if not np.isfinite(action).all():
            raise ValueError(f"the action {action} is not finite")
        place = (np.clip(action, -1.0, 1.0) + 1.0) * (_WINDOW / 2)
        native, reward, is_terminal, _, _ = self._env.step(place.astype(np.float32))
        self._steps += 1
        self._best = max(self._best, float(reward))
        is_last = bool(is_terminal) or self._steps >= self.episode_steps
        return Timestep(
            obs=self._obs(native),
            reward=float(reward),
            is_first=False,
            is_last=is_last,
            is_terminal=bool(is_terminal),
            scores={"max_reward": self._best, "success": float(is_terminal)} if is_last else {},
        )

    def replay(self, seed: int, actions: np.ndarray) -> Timestep:
        """Draws the last image only."""
        if not self._has_pixels or len(actions) == 0:
            return super().replay(seed, actions)
        self._env._render = self._unseen_image
        try:
            timestep = super().replay(seed, actions[:-1])
        finally:
            del self._env._render
        return timestep if timestep.is_last else self.step(np.array(actions[-1]))

    def close(self) -> None:
        self._env.close()

    def _unseen_image(self) -> np.ndarray:
        return np.zeros(self.spaces.obs["image"].shape, np.uint8)

    def _obs(self, native: Any) -> dict[str, np.ndarray]:
        if not self._has_pixels:
            return {"vector": np.array(native, np.float32)}
        return {"image": np.array(native["pixels"]), "agent": np.array(native["agent_pos"], np.float32)}


def task_names() -> list[str]:
    return list(_TASKS)


def task_info(task: str) -> TaskInfo:
    try:
        environment = PushTEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    environment.close()
    return described(environment, episode_steps=environment.episode_steps)


def _made(task: str, **options: Any) -> Any:
    """The simulator itself, without Gymnasium's time limit: ours is an option."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # pygame greets on import
    module = simulator_package("gym_pusht.envs.pusht", task=task, extra="pusht")
    simulator = module.PushTEnv(**options)

    def coverage() -> float:
        """As the simulator computes it, but with the two bars of the T in their order.

        The simulator walks a set of them, whose order follows their addresses in memory, and so does the last bit
        of the reward.
        """
        bars = simulator._block_shapes
        goal = module.pymunk_to_shapely(simulator.get_goal_pose_body(simulator.goal_pose), bars)
        return goal.intersection(module.pymunk_to_shapely(simulator.block, bars)).area / goal.area

    simulator._get_coverage = coverage
    return simulator
