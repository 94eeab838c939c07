"""Suite "atari": the games of the Arcade Learning Environment, such as ``atari_pong``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from reverie.environments.atari_console import FIRE, NOOP, Console, emulator_package, game_names
from reverie.environments.atari_picture import Picture, Resize
from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, State, Timestep, require

Lives = Literal["unused", "terminal"]

_ATARI_100K = (
    "alien amidar assault asterix bank_heist battle_zone boxing breakout chopper_command crazy_climber demon_attack "
    "freeway frostbite gopher hero jamesbond kangaroo krull kung_fu_master ms_pacman pong private_eye qbert "
    "road_runner seaquest up_n_down"
)
"""The 26 games of the Atari 100k benchmark: what is known without the package."""


class AtariEnvironment(Environment):
    """One game. The defaults are those of DreamerV3's block `atari`; rewards are the game's points, unclipped.

    An episode begins with 0 to ``noops`` frames without an action, then, with ``has_fire_reset``, one agent step of
    FIRE and one of the game's next action. In every frame of an agent step the previous action stays with
    probability ``sticky``. ``lives`` "terminal" ends the episode where a life is lost; a new game follows.
    ``max_frames`` is the time limit of an episode, counted without its beginning.
    """

    def __init__(
        self,
        *,
        task: str,
        size: Sequence[int] = (96, 96),
        is_gray: bool = True,
        resize: Resize = "bilinear",
        action_repeat: int = 4,
        has_max_pool: bool = True,
        frame_stack: int = 1,
        sticky: float = 0.25,
        has_all_actions: bool = True,
        noops: int = 30,
        has_fire_reset: bool = False,
        lives: Lives = "unused",
        max_frames: int = 108_000,
    ) -> None:
        _check(task, sticky=sticky, lives=lives, action_repeat=action_repeat, noops=noops, max_frames=max_frames)
        self.task = task
        self.frames_per_step = action_repeat
        self.episode_steps = -(-max_frames // action_repeat)
        self._console = Console(task.removeprefix("atari_"), task=task)
        self._picture = Picture(
            self._console,
            size=size,
            is_gray=is_gray,
            resize=resize,
            has_max_pool=has_max_pool,
            stack=frame_stack,
        )
        self.resume: Resume = "state" if self._console.can_save else "replay"
        self._actions = self._console.actions(has_all=has_all_actions)
        action = Space(shape=(), dtype="int64", classes=len(self._actions))
        self.spaces = Spaces(obs={"image": self._picture.space}, action=action)
        self._sticky, self._noops, self._max_frames = sticky, noops, max_frames
        self._has_fire_reset, self._is_life_terminal = has_fire_reset, lives == "terminal"
        self._rng = np.random.default_rng(0)
        self._held = NOOP
        self._frames = self._lives = 0

    def reset(self, seed: int) -> Timestep:
        self._rng = np.random.default_rng(seed)
        self._held = NOOP
        self._console.restart()
        for _ in range(self._rng.integers(self._noops + 1)):
            self._frame_of_beginning(NOOP)
        if self._has_fire_reset:
            for action in self._fire_actions():
                for _ in range(self.frames_per_step):
                    self._frame_of_beginning(action)
        self._frames = 0
        self._lives = self._console.lives
        self._picture.begin()
        return self._timestep(0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        chosen = self._actions[self._index(action)]
        reward, is_last, is_terminal = 0.0, False, False
        for frame in range(self.frames_per_step):
            reward += self._frame(chosen)
            self._frames += 1
            is_terminal = self._is_terminal()
            is_last = is_terminal or self._frames >= self._max_frames
            if frame >= self.frames_per_step - self._picture.pool or is_last:
                self._picture.take()
            if is_last:
                break
        return self._timestep(reward, is_first=False, is_last=is_last, is_terminal=is_terminal)

    def get_state(self) -> State:
        return {
            "console": self._console.get_state(),
            "picture": self._picture.get_state(),
            "generator": json.dumps(self._rng.bit_generator.state),  # as text: its numbers have 128 bits
            "held": self._held,
            "frames": self._frames,
            "lives": self._lives,
        }

    def set_state(self, state: State) -> None:
        self._console.set_state(state["console"])
        self._picture.set_state(state["picture"])
        self._rng.bit_generator.state = json.loads(state["generator"])
        self._held = int(state["held"])
        self._frames = int(state["frames"])
        self._lives = int(state["lives"])

    def close(self) -> None:
        """The emulator holds nothing but memory."""

    def _frame(self, chosen: int) -> int:
        if self._sticky == 0.0 or self._rng.random() >= self._sticky:
            self._held = chosen
        return self._console.act(self._held)

    def _frame_of_beginning(self, action: int) -> None:
        self._frame(action)
        if self._console.is_over:
            self._console.restart()

    def _fire_actions(self) -> list[int]:
        """FIRE and what follows it, where the game knows FIRE."""
        known = self._console.actions(has_all=False)
        return known[known.index(FIRE) :][:2] if FIRE in known else []

    def _is_terminal(self) -> bool:
        before, self._lives = self._lives, self._console.lives
        is_lost = self._is_life_terminal and 0 < self._lives < before
        return is_lost or self._console.is_over

    def _index(self, action: np.ndarray) -> int:
        index = int(action)
        if not 0 <= index < len(self._actions):
            raise ValueError(f"the action {index} is outside 0 to {len(self._actions) - 1}")
        return index

    def _timestep(self, reward: float, *, is_first: bool, is_last: bool, is_terminal: bool) -> Timestep:
        obs = {"image": self._picture.image()}
        return Timestep(obs=obs, reward=reward, is_first=is_first, is_last=is_last, is_terminal=is_terminal)


def _check(task: str, *, sticky: float, lives: str, action_repeat: int, noops: int, max_frames: int) -> None:
    emulator_package(task)  # without it the names of the games are not known
    require_task(task, task_names())
    require("environment.simulator.sticky", sticky, at_least=0.0, at_most=1.0)
    require("environment.simulator.action_repeat", action_repeat, at_least=1)
    require("environment.simulator.noops", noops, at_least=0)
    require("environment.simulator.max_frames", max_frames, at_least=1)
    if lives not in get_args(Lives):
        raise ReverieError(f"`environment.simulator.lives` must be unused or terminal, got {lives}.")


def task_names() -> list[str]:
    try:
        games = game_names("atari")
    except ReverieError:
        games = _ATARI_100K.split()
    return [f"atari_{game}" for game in games]


def task_info(task: str) -> TaskInfo:
    try:
        environment = AtariEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    return described(environment, episode_steps=environment.episode_steps)


def example_task() -> str:
    return "atari_pong"
