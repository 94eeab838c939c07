"""Suite "crafter": an open world in 64x64 pixels with 22 achievements (Hafner 2022, "Benchmarking the spectrum of
agent capabilities")."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from reverie.environments.actions import class_index
from reverie.environments.base import Environment, Resume, TaskInfo, simulator_package
from reverie.environments.crafter_world import generate_world
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep, require

_TASKS = ("crafter_reward", "crafter_noreward")
_SMALLEST = 18
"""Pixels: below two per tile the digits of the inventory have no size, and Crafter fails."""


class CrafterEnvironment(Environment):
    """One world per seed: the one that ``crafter.Env(seed=seed)`` begins with.

    ``crafter_reward`` pays 1 when an achievement is unlocked and a tenth of each change of health;
    ``crafter_noreward`` plays the same game for reward 0. Death is terminal, the limit of ``episode_steps`` is not.
    With the last observation comes a score for each achievement: 1 where the episode unlocked it.
    """

    resume: Resume = "replay"
    frames_per_step = 1

    def __init__(self, *, task: str, size: int = 64, episode_steps: int = 10_000) -> None:
        require_task(task, _TASKS)
        require("size", size, at_least=_SMALLEST)
        require("episode_steps", episode_steps, at_least=1)
        self.task = task
        self.episode_steps = episode_steps
        crafter = simulator_package("crafter", task=task, extra="crafter")
        self._env: Any = crafter.Env(size=(size, size), reward=task == "crafter_reward", length=episode_steps, seed=0)
        self._objects = simulator_package("crafter.objects", task=task, extra="crafter")
        _keep_chunks_in_order(self._env._world)
        self._env._sem_view = _nothing  # a map drawn at every step for an info that nobody here reads
        image = Space(shape=(size, size, 3), dtype="uint8")
        action = Space(shape=(), dtype="int64", classes=len(self._env.action_names))
        self.spaces = Spaces(obs={"image": image}, action=action)

    def reset(self, seed: int) -> Timestep:
        image = self._begun(seed)
        return Timestep(obs={"image": _own(image)}, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        image, reward, is_last, info = self._env.step(class_index(action, self.spaces.action.dim))
        return Timestep(
            obs={"image": _own(image)},
            reward=float(reward),
            is_first=False,
            is_last=bool(is_last),
            is_terminal=info["discount"] == 0.0,
            scores=_achievement_scores(info["achievements"]) if is_last else {},
        )

    def replay(self, seed: int, actions: np.ndarray) -> Timestep:
        """Draws the last image only, which takes a third of the time."""
        if len(actions) == 0:
            return self.reset(seed)
        self._env._obs = self._unseen_image
        try:
            timestep = super().replay(seed, actions[:-1])
        finally:
            del self._env._obs
        return timestep if timestep.is_last else self.step(np.array(actions[-1]))

    def close(self) -> None:
        """Crafter holds nothing but memory."""

    @staticmethod
    def summary(mean_scores: Mapping[str, float]) -> Mapping[str, float]:
        """The Crafter score in percent: the geometric mean of the success rates, each moved up by 1 %."""
        rates = [rate for name, rate in mean_scores.items() if name.startswith("achievement/")]
        if not rates:
            return {}
        return {"crafter_score": math.exp(sum(math.log(1.0 + 100.0 * rate) for rate in rates) / len(rates)) - 1.0}

    def _begun(self, seed: int) -> np.ndarray:
        """What ``crafter.Env.reset`` does, with `generate_world` in the place of its own."""
        env, world = self._env, self._env._world
        # Crafter seeds an episode by this pair; the first episode of a new environment has number 1.
        env._seed, env._episode, env._step = seed, 1, 0
        world.reset(seed=hash((env._seed, env._episode)) % (2**31 - 1))
        env._update_time()
        env._player = self._objects.Player(world, (world.area[0] // 2, world.area[1] // 2))
        env._last_health, env._unlocked = env._player.health, set()
        world.add(env._player)
        generate_world(world, env._player)
        return env._obs()

    def _unseen_image(self) -> np.ndarray:
        """A black image in the place of one, which costs the world's generator what a drawn one does."""
        env = self._env
        if env._world.daylight < 0.5:  # the noise of the night
            env._world.random.uniform(32, 127, tuple(env._local_view._grid * (env._size // env._view)))
        return np.zeros(self.spaces.obs["image"].shape, np.uint8)


class OrderedSet(dict[Any, None]):
    """A set that is walked in the order in which its members came."""

    def add(self, member: object) -> None:
        self[member] = None

    def remove(self, member: object) -> None:
        del self[member]


def task_names() -> list[str]:
    return list(_TASKS)


def task_info(task: str) -> TaskInfo:
    try:
        environment = CrafterEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    return described(environment, episode_steps=environment.episode_steps)


def _keep_chunks_in_order(world: Any) -> None:
    """Make a world the same in every process.

    Crafter keeps the creatures of each chunk in a set, whose order follows their addresses in memory, and draws from
    that order which of them vanishes. Neither a seed nor a fixed hash seed of Python reaches those addresses.
    """
    plain_reset = world.reset

    def reset(seed: int | None = None) -> None:
        plain_reset(seed)
        world._chunks = defaultdict(OrderedSet)

    world.reset = reset


def _nothing() -> None:
    return None


def _own(image: np.ndarray) -> np.ndarray:
    """Rows in memory order: Crafter gives a transposed view."""
    return np.ascontiguousarray(image)


def _achievement_scores(counts: Mapping[str, int]) -> dict[str, float]:
    return {f"achievement/{name}": float(count > 0) for name, count in counts.items()}
