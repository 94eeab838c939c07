"""Suite "minigrid": every MiniGrid and BabyAI level.

``minigrid_DoorKey-8x8-v0`` is MiniGrid-DoorKey-8x8-v0, ``minigrid_BabyAI-GoToLocal-v0`` is BabyAI-GoToLocal-v0.
"""

from __future__ import annotations

import os
from typing import Any, Literal, get_args

import numpy as np

from reverie.environments.base import Environment, Resume, TaskInfo, simulator_package
from reverie.environments.minigrid_mission import MissionCodes, MissionWords
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep, require

Observation = Literal["symbolic", "image"]
Mission = Literal["auto", "none", "codes", "words"]

_PREFIX = "minigrid_"
_KNOWN_TASKS = ["minigrid_DoorKey-8x8-v0", "minigrid_BabyAI-GoToLocal-v0"]
"""Named in the list of tasks where the package that knows the others is missing."""
_SEQUENCE_WORDS, _WORDS = 72, 20
"""The longest missions: of the levels that chain instructions with `and` and `then`, and of all others."""


class MinigridEnvironment(Environment):
    """One level: what the agent sees in front of it, its direction, and the mission where that changes.

    ``observation`` "symbolic" gives the view under "view", each cell as three one-hots (object, colour, state of a
    door); "image" draws the view under "image" in tiles of equal size. ``mission`` "codes" gives the words in their
    order, "words" how often each word occurs, "none" nothing, and "auto" the codes of missions that differ between
    episodes. ``mission_words`` is the number of places for words; None takes what the longest mission needs.
    """

    resume: Resume = "replay"
    frames_per_step = 1

    def __init__(
        self,
        *,
        task: str,
        observation: Observation = "symbolic",
        size: int = 64,
        mission: Mission = "auto",
        mission_words: int | None = None,
    ) -> None:
        _require_choice("observation", observation, get_args(Observation))
        _require_choice("mission", mission, get_args(Mission))
        if mission_words is not None:
            require("mission_words", mission_words, at_least=1)
        self.task = task
        self._env = _level(task)
        self._view: _SymbolicView | _DrawnView = (
            _SymbolicView(self._env) if observation == "symbolic" else _DrawnView(self._env, size)
        )
        self._mission = _mission_reader(self._env, task=task, mission=mission, num_words=mission_words)
        obs = {self._view.key: self._view.space, "direction": Space(shape=(), dtype="int64", classes=4)}
        if self._mission is not None:
            obs["mission"] = Space(shape=(self._mission.dim,), dtype="float32")
        action = Space(shape=(), dtype="int64", classes=int(self._env.action_space.n))
        self.spaces = Spaces(obs=obs, action=action)

    @property
    def episode_steps(self) -> int | None:
        """The time limit; None for the levels that set one with each mission."""
        return None if getattr(self._env, "fixed_max_steps", None) is False else int(self._env.max_steps)

    def reset(self, seed: int) -> Timestep:
        native, _ = self._env.reset(seed=seed)
        return Timestep(obs=self._obs(native), reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        index = int(action)
        if not 0 <= index < self.spaces.action.dim:
            raise ValueError(f"the action {index} is outside 0 to {self.spaces.action.dim - 1}")
        native, reward, is_terminal, is_cut, _ = self._env.step(index)
        is_last = bool(is_terminal or is_cut)
        return Timestep(
            obs=self._obs(native),
            reward=float(reward),
            is_first=False,
            is_last=is_last,
            is_terminal=bool(is_terminal),
            scores={"success": float(reward > 0)} if is_last else {},  # rewards are paid for success alone
        )

    def close(self) -> None:
        self._env.close()

    def _obs(self, native: dict[str, Any]) -> dict[str, np.ndarray]:
        obs = {self._view.key: self._view.value(native), "direction": np.array(native["direction"], np.int64)}
        if self._mission is not None:
            obs["mission"] = self._mission.value(native["mission"])
        return obs


class _SymbolicView:
    """The cells in front of the agent as one-hots: a vector that every encoder can read."""

    key = "view"

    def __init__(self, env: Any) -> None:
        constants = simulator_package("minigrid.core.constants", task="minigrid", extra="minigrid")
        kinds = (len(constants.OBJECT_TO_IDX), len(constants.COLOR_TO_IDX), len(constants.STATE_TO_IDX))
        width, height, _ = env.observation_space["image"].shape
        starts = np.cumsum((0, *kinds[:-1]))  # where the object, the colour and the state of a cell begin
        self._hot = (np.arange(width * height)[:, None] * sum(kinds) + starts).reshape(width, height, 3)
        self.space = Space(shape=(width * height * sum(kinds),), dtype="float32")

    def value(self, native: dict[str, Any]) -> np.ndarray:
        view = np.zeros(self.space.shape, np.float32)
        view[self._hot + native["image"]] = 1.0
        return view


class _DrawnView:
    """The cells in front of the agent, drawn in tiles of ``size // cells`` pixels; the rest of the image is black."""

    key = "image"

    def __init__(self, env: Any, size: int) -> None:
        require("size", size, at_least=env.agent_view_size)
        self._env = env
        self._tile = size // env.agent_view_size
        self._start = (size - self._tile * env.agent_view_size) // 2
        self.space = Space(shape=(size, size, 3), dtype="uint8")

    def value(self, native: dict[str, Any]) -> np.ndarray:
        del native  # the drawing has no use for the symbols
        image = np.zeros(self.space.shape, np.uint8)
        drawn = self._env.get_pov_render(self._tile)
        end = self._start + len(drawn)
        image[self._start : end, self._start : end] = drawn
        return image


def task_names() -> list[str]:
    try:
        registry = _registry("minigrid")
    except ReverieError:
        return list(_KNOWN_TASKS)
    return [f"{_PREFIX}{name.removeprefix('MiniGrid-')}" for name in registry]


def example_task() -> str:
    return _KNOWN_TASKS[0]


def task_info(task: str) -> TaskInfo:
    try:
        environment = MinigridEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    environment.close()
    return described(environment, episode_steps=environment.episode_steps)


def _registry(task: str) -> dict[str, Any]:
    """What Gymnasium knows about each level, by its id there."""
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # pygame greets on import
    simulator_package("minigrid", task=task, extra="minigrid")
    from gymnasium import registry

    return {name: spec for name, spec in registry.items() if name.startswith(("MiniGrid-", "BabyAI-"))}


def _level(task: str) -> Any:
    """The level itself, without the wrappers that Gymnasium puts around it."""
    registry = _registry(task)
    require_task(task, task_names())
    name = task.removeprefix(_PREFIX)
    spec = registry[name if name.startswith("BabyAI-") else f"MiniGrid-{name}"]
    module, _, kind = spec.entry_point.partition(":")
    try:
        level = getattr(simulator_package(module, task=task, extra="minigrid"), kind)(**spec.kwargs)
        # Levels that grow from a picture read it late, at their first reset.
        getattr(getattr(level, "config", None), "wfc_kwargs", None)
    except OSError as error:
        raise ReverieError(
            f"{task} cannot run here, because a file is missing from the package minigrid ({_words(error)}): "
            "choose another level."
        ) from error
    if name.startswith("BabyAI-"):
        # It prints a line for each level that it draws and throws away.
        vars(simulator_package("minigrid.envs.babyai.core.roomgrid_level", task=task, extra="minigrid"))["print"] = (
            _hush
        )
    return level


def _mission_reader(
    env: Any, *, task: str, mission: Mission, num_words: int | None
) -> MissionCodes | MissionWords | None:
    is_babyai = task.startswith(f"{_PREFIX}BabyAI-")
    varies = is_babyai or env.observation_space["mission"].ordered_placeholders is not None
    if mission == "none" or (mission == "auto" and not varies):
        return None
    if mission == "words":
        return MissionWords(task=task)
    longest = _SEQUENCE_WORDS if hasattr(env, "instr_kinds") else _WORDS
    return MissionCodes(num_words=longest if num_words is None else num_words, task=task)


def _require_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ReverieError(f"`{name}` is {value!r}, but it must be one of {', '.join(choices)}.")


def _hush(*words: object) -> None:
    del words


def _words(error: Exception) -> str:
    return " ".join(str(error).split())
