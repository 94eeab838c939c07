"""One Atari console: the emulator of ale-py with a game in it, which begins the same way each time."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from reverie.environments.base import simulator_package
from reverie.types import ReverieError, State

NOOP = 0
FIRE = 1

_STARTUP_FRAMES = 3
"""Frames played before anybody looks. Until then Q*bert and Tetris are in the middle of a frame of many thousand
instructions, and a state that is saved there does not go on in the same way."""

_UNSAVED_GAMES = frozenset({"othello", "tic_tac_toe_3d", "video_checkers", "video_chess", "yars_revenge"})
"""Games whose saved state is not complete. The board games think for longer than a frame, and the emulator keeps to
itself how far it was; Yars' Revenge leaves lines of the screen as they were two frames ago."""


class Console:
    """What a game shows depends on nothing but the actions since ``restart``."""

    def __init__(self, game: str, *, task: str) -> None:
        self._package = emulator_package(task)
        self._rom = _rom(game, task)
        self._ale = self._started()
        self._start = self._ale.cloneState(include_rng=True)
        self._start_screen: np.ndarray = self._ale.getScreenRGB()
        self._is_at_start = True
        self.task = task
        self.can_save = game not in _UNSAVED_GAMES
        """Whether ``get_state`` holds everything. Where it does not, ``restart`` starts another emulator."""

    @property
    def screen_shape(self) -> tuple[int, int, int]:
        height, width = self._ale.getScreenDims()
        return height, width, 3

    @property
    def lives(self) -> int:
        return self._ale.lives()

    @property
    def is_over(self) -> bool:
        return self._ale.game_over()

    def actions(self, *, has_all: bool) -> list[int]:
        """What ``act`` takes: every position of the joystick, or only those that the game knows."""
        known = self._ale.getLegalActionSet() if has_all else self._ale.getMinimalActionSet()
        return [action.value for action in known]

    def restart(self) -> None:
        if self.can_save:
            # Not the emulator's own reset, which leaves traces of the last game in some games.
            self._ale.restoreState(self._start)
        elif not self._is_at_start:
            self._ale = self._started()
        self._is_at_start = True

    def act(self, action: int) -> int:
        """Play one frame; the points it brought."""
        self._is_at_start = False
        return self._ale.act(action)

    def draw(self, screen: np.ndarray) -> None:
        """Write the frame that was played last."""
        if self._is_at_start:
            np.copyto(screen, self._start_screen)  # the emulator's screen is not part of its state
        else:
            self._ale.getScreenRGB(screen)

    def get_state(self) -> State:
        """Everything but the screen, which the next frame draws anew."""
        data = self._ale.cloneState(include_rng=True).serialize()
        return {"emulator": np.frombuffer(data, np.uint8).copy(), "is_at_start": self._is_at_start}

    def set_state(self, state: State) -> None:
        self._ale.restoreState(self._package.ALEState(np.asarray(state["emulator"], np.uint8).tobytes()))
        self._is_at_start = bool(state["is_at_start"])

    def _started(self) -> Any:
        self._package.ALEInterface.setLoggerMode(self._package.LoggerMode.Error)
        ale = self._package.ALEInterface()
        # The emulator's own chance is off: who plays draws whether an action sticks, from a generator it can save.
        ale.setFloat("repeat_action_probability", 0.0)
        ale.setInt("random_seed", 0)
        ale.loadROM(self._rom)
        ale.reset_game()
        for _ in range(_STARTUP_FRAMES):
            ale.act(NOOP)
        return ale


def emulator_package(task: str) -> ModuleType:
    return simulator_package("ale_py", task=task, extra="atari")


def game_names(task: str) -> list[str]:
    """Every game that comes with ale-py and that one player can play."""
    ale = emulator_package(task).ALEInterface
    roms = simulator_package("ale_py.roms", task=task, extra="atari")
    return [name for name in roms.get_all_rom_ids() if ale.isSupportedROM(roms.get_rom_path(name)) is not None]


def _rom(game: str, task: str) -> Any:
    """The file of a game. The emulator ends the process on a file that it cannot read, so ask it first."""
    path = simulator_package("ale_py.roms", task=task, extra="atari").get_rom_path(game)
    if path is None or emulator_package(task).ALEInterface.isSupportedROM(path) is None:
        raise ReverieError(f"{task} cannot be played by this version of ale-py: run pip install 'reverie[atari]'.")
    return path
