"""Procgen's sixteen games from its old package, in the isolated interpreter "procgen".

This file stands alone: Reverie reads its signature, and a process of the other interpreter loads and serves it.
"""

from __future__ import annotations

import difflib
import importlib
import struct
from typing import Any

import numpy as np

_PREFIX = "procgen_"
GAMES = (
    *("bigfish", "bossfight", "caveflyer", "chaser", "climber", "coinrun", "dodgeball", "fruitbot"),
    *("heist", "jumper", "leaper", "maze", "miner", "ninja", "plunder", "starpilot"),
)
_MODES = {
    "easy": GAMES,
    "hard": GAMES,
    "extreme": ("chaser", "dodgeball", "leaper", "starpilot"),
    "memory": ("caveflyer", "dodgeball", "heist", "jumper", "maze", "miner"),
    "exploration": ("coinrun", "caveflyer", "leaper", "jumper", "maze", "heist", "climber", "ninja"),
}
"""Distribution modes and the games that have them. The simulator ends the whole process on any other pair."""

_MAX_LEVEL = 2**31 - 1
_FORCED_RESET = np.array([-1])
_INT = struct.Struct("<i")


class ReverieError(Exception):
    """Something the user can mend; Reverie knows it by its name."""


class Timestep:
    """What the game shows at one moment, with the names that Reverie uses."""

    def __init__(self, image: np.ndarray, reward: float, *, is_first: bool, is_last: bool, is_terminal: bool) -> None:
        self.obs = {"image": image}
        self.reward = reward
        self.is_first = is_first
        self.is_last = is_last
        self.is_terminal = is_terminal
        self.scores: dict[str, float] = {}


class ProcgenEnvironment:
    """One game: 64x64 RGB, 15 actions. ``num_levels`` 0 plays all levels, else those from ``start_level`` on.

    The simulator begins the next episode inside the step that ends one. Its time limit is therefore taken over here,
    so that the last frame of an episode that runs out of time is the true one. Where the game itself ends an episode,
    its last frame is never drawn: the frame before it is shown again.
    """

    interpreter = "procgen"

    def __init__(
        self, *, task: str, distribution_mode: str = "hard", start_level: int = 0, num_levels: int = 0
    ) -> None:
        self.task = task
        game = _game_name(task)
        options = _options(game, distribution_mode, start_level, num_levels)
        make: Any = importlib.import_module("procgen").ProcgenGym3Env
        # No threads: one game gains nothing from them. The random seed does not matter: each reset chooses its level.
        self._game = make(num=1, env_name=game, num_threads=0, rand_seed=0, **options)
        self._unplayed = self._game.get_state()[0]
        self._image = np.zeros((64, 64, 3), np.uint8)
        self._steps = 0
        self._limit = 0
        self.spaces: dict[str, Any] = {
            "obs": {"image": {"shape": [64, 64, 3], "dtype": "uint8", "classes": None}},
            "action": {"shape": [], "dtype": "int64", "classes": 15},
        }
        self.frames_per_step = 1
        self.resume = "state"

    def reset(self, seed: int) -> Timestep:
        """Begin the level that this seed draws, from the same unplayed game each time: nothing is left of the last."""
        state = bytearray(self._unplayed)
        levels_at, _ = _places(state)
        first, end = _INT.unpack_from(state, levels_at)[0], _INT.unpack_from(state, levels_at + 4)[0]
        level = int(np.random.default_rng(seed).integers(first, end))
        struct.pack_into("<ii", state, levels_at, level, level + 1)
        self._game.set_state([bytes(state)])
        self._game.act(_FORCED_RESET)
        self._steps, self._limit = 0, self._lifted_time_limit()
        self._image = self._frame()
        return Timestep(self._image.copy(), 0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        self._game.act(np.array([int(action)]))
        reward, seen, is_next_episode = self._game.observe()
        self._steps += 1
        is_terminal = bool(is_next_episode[0])
        is_last = is_terminal or self._steps >= self._limit
        if not is_terminal:
            self._image = seen["rgb"][0]
        now = Timestep(self._image.copy(), float(reward[0]), is_first=False, is_last=is_last, is_terminal=is_terminal)
        if is_last:
            now.scores["level_complete"] = float(self._game.get_info()[0]["prev_level_complete"])
        return now

    def get_state(self) -> dict[str, Any]:
        game = np.frombuffer(self._game.get_state()[0], np.uint8).copy()
        return {"game": game, "steps": self._steps, "limit": self._limit}

    def set_state(self, state: dict[str, Any]) -> None:
        self._game.set_state([np.asarray(state["game"], np.uint8).tobytes()])
        self._steps, self._limit = int(state["steps"]), int(state["limit"])
        self._image = self._frame()

    def close(self) -> None:
        self._game.close()

    def _frame(self) -> np.ndarray:
        return self._game.observe()[1]["rgb"][0]

    def _lifted_time_limit(self) -> int:
        """The time limit of the level that has just begun, which the game no longer enforces afterwards."""
        state = bytearray(self._game.get_state()[0])
        _, timeout_at = _places(state)
        limit = _INT.unpack_from(state, timeout_at)[0]
        _INT.pack_into(state, timeout_at, 2**31 - 1)
        self._game.set_state([bytes(state)])
        return limit


def _places(state: bytearray) -> tuple[int, int]:
    """Where a saved game of Procgen's format 0 keeps its range of levels and its time limit.

    Integers of 4 bytes: the format; the name, after its length; 12 options, the grid step, the range of levels, the
    game's type and number; two generators, each a flag and a text after its length; reward, two flags, the action, the
    time limit.
    """
    if _INT.unpack_from(state, 0)[0] != 0:
        raise ReverieError(
            "This version of procgen saves its games in an unknown format: run `reverie env add procgen`."
        )
    levels_at = 8 + _INT.unpack_from(state, 4)[0] + 13 * 4
    place = levels_at + 4 * 4
    for _ in range(2):
        place += 8 + _INT.unpack_from(state, place + 4)[0]
    return levels_at, place + 4 * 4


def _game_name(task: str) -> str:
    game = task[len(_PREFIX) :] if task.startswith(_PREFIX) else task
    if task == _PREFIX + game and game in GAMES:
        return game
    nearest = difflib.get_close_matches(game, GAMES, n=1)
    hint = f"did you mean {_PREFIX}{nearest[0]}?" if nearest else f"the games are {', '.join(GAMES)}."
    raise ReverieError(f"There is no task {task}: {hint}")


def _options(game: str, mode: str, start_level: int, num_levels: int) -> dict[str, Any]:
    """What the simulator is made with; refuses what it would only answer by ending the process."""
    if mode not in _MODES:
        raise ReverieError(f"distribution_mode is '{mode}', but it must be one of {', '.join(_MODES)}.")
    if game not in _MODES[mode]:
        having = ", ".join(name for name in _MODES if game in _MODES[name])
        raise ReverieError(f"{game} has no distribution_mode '{mode}': use one of {having}.")
    if start_level < 0 or num_levels < 0 or start_level + num_levels > _MAX_LEVEL:
        given = f"start_level {start_level} with num_levels {num_levels}"
        raise ReverieError(f"{given} is out of range: both count from 0, to {_MAX_LEVEL} together.")
    if num_levels == 0 and start_level > 0:
        raise ReverieError("start_level does nothing while num_levels is 0 (all levels): set num_levels too.")
    if mode != "exploration":
        return {"distribution_mode": mode, "start_level": start_level, "num_levels": num_levels}
    if num_levels:
        raise ReverieError("distribution_mode 'exploration' is a single level: leave num_levels at 0.")
    return {"distribution_mode": mode}
