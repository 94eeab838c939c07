"""All Atari games of a run in one C++ object: faster than one process each, and near to what `atari.py` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reverie.environments.atari import task_names
from reverie.environments.atari_console import emulator_package
from reverie.environments.atari_picture import checked_size
from reverie.environments.base import environment_seed, simulator_package
from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.parallel.next_step_pool import NextStepPool
from reverie.environments.task_lines import require_task
from reverie.types import Space, Spaces, require


class AtariBatch(BatchSimulator):
    """The `AtariVectorEnv` of ale-py, with the options of `AtariEnvironment` that it knows.

    Unlike there, the screen is made gray by the emulator's palette, before pooling, and resized by area; and a game
    begins with the emulator's own reset.
    """

    def __init__(
        self,
        *,
        task: str,
        num_envs: int,
        seed: int,
        size: Sequence[int] = (96, 96),
        is_gray: bool = True,
        action_repeat: int = 4,
        has_max_pool: bool = True,
        frame_stack: int = 1,
        sticky: float = 0.25,
        has_all_actions: bool = True,
        noops: int = 30,
        max_frames: int = 108_000,
        num_threads: int = 0,
    ) -> None:
        _check(task, sticky=sticky, num_envs=num_envs)
        height, width = checked_size(size)
        _require_counts({"noops": noops, "num_threads": num_threads}, at_least=0)
        _require_counts(
            {"action_repeat": action_repeat, "frame_stack": frame_stack, "max_frames": max_frames}, at_least=1
        )
        self.task, self.num_envs, self.frames_per_step = task, num_envs, action_repeat
        self._seeds = np.array([environment_seed(seed, index, 0) for index in range(num_envs)])
        native = _vector_env(
            task,
            num_envs,
            img_height=height,
            img_width=width,
            grayscale=is_gray,
            frameskip=action_repeat,
            maxpool=has_max_pool,
            stack_num=frame_stack,
            repeat_action_probability=sticky,
            full_action_space=has_all_actions,
            noop_max=noops + 1,  # it draws from 0 to one less
            max_num_frames_per_episode=max_frames,
            num_threads=num_threads,
        )
        self._pool = NextStepPool(native, _images)
        channels = frame_stack * (1 if is_gray else 3)
        self.spaces = _spaces((height, width, channels), num_actions=int(native.single_action_space.n))

    def reset(self) -> BatchTimestep:
        return self._pool.reset(seed=self._seeds)

    def step(self, action: np.ndarray) -> BatchTimestep:
        if action.min() < 0 or action.max() >= self.spaces.action.dim:
            raise ValueError(f"an action is outside 0 to {self.spaces.action.dim - 1}")
        return self._pool.step(action)

    def close(self) -> None:
        self._pool.close()


def _spaces(image: tuple[int, int, int], *, num_actions: int) -> Spaces:
    action = Space(shape=(), dtype="int64", classes=num_actions)
    return Spaces(obs={"image": Space(shape=image, dtype="uint8")}, action=action)


def _images(obs: np.ndarray) -> np.ndarray:
    """From [N, stack, H, W] or [N, stack, H, W, 3] to [N, H, W, channels], the newest frame last."""
    colour = obs if obs.ndim == 5 else obs[..., None]
    behind = np.ascontiguousarray(colour.transpose(0, 2, 3, 1, 4))
    return behind.reshape(*behind.shape[:3], -1)


def _vector_env(task: str, num_envs: int, **options: Any) -> Any:
    module = simulator_package("ale_py.vector_env", task=task, extra="atari")
    game = task.removeprefix("atari_")
    return module.AtariVectorEnv(game, num_envs, reward_clipping=False, use_fire_reset=False, **options)


def _check(task: str, *, sticky: float, num_envs: int) -> None:
    emulator_package(task)  # without it the names of the games are not known
    require_task(task, task_names())
    require("environment.num_envs", num_envs, at_least=1)
    require("environment.simulator.sticky", sticky, at_least=0.0, at_most=1.0)


def _require_counts(counts: Mapping[str, int], *, at_least: int) -> None:
    for name, value in counts.items():
        require(f"environment.simulator.{name}", value, at_least=at_least)
