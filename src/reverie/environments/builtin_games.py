"""The games of the suite "builtin". All chance lies in how a game begins; after that it follows from the actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from reverie.types import Space, State

_TIME_LIMIT = 20


class Game(ABC):
    """A game keeps all that it remembers in numbers and small arrays, so that its whole state is a dict of them."""

    obs: Mapping[str, Space]
    action: ClassVar[Space]
    time_limit: ClassVar[int | None]
    """Agent steps after which an episode is cut; None for a game that ends by itself."""
    best_return: ClassVar[float]

    @abstractmethod
    def begin(self, rng: np.random.Generator) -> None: ...

    @abstractmethod
    def play(self, action: np.ndarray) -> tuple[float, bool]:
        """The reward, and whether the game is over. The action is known to lie inside its space."""

    @abstractmethod
    def observation(self) -> dict[str, np.ndarray]:
        """Fresh arrays."""

    @abstractmethod
    def get_state(self) -> State: ...

    @abstractmethod
    def set_state(self, state: State) -> None: ...


class Corridor(Game):
    """Walk to a place three cells away and stay there; every step that ends on it pays 1."""

    _CELLS = 10
    _DISTANCE = 3
    action = Space(shape=(), dtype="int64", classes=3)
    time_limit = _TIME_LIMIT
    best_return = float(_TIME_LIMIT - _DISTANCE + 1)

    def __init__(self) -> None:
        self.obs = {"vector": Space(shape=(2 * self._CELLS,), dtype="float32")}
        self.place = self.target = 0

    def begin(self, rng: np.random.Generator) -> None:
        self.place = int(rng.integers(self._CELLS))
        targets = [self.place - self._DISTANCE, self.place + self._DISTANCE]
        inside = [target for target in targets if 0 <= target < self._CELLS]
        self.target = inside[int(rng.integers(len(inside)))]

    def play(self, action: np.ndarray) -> tuple[float, bool]:
        self.place = min(max(self.place + int(action) - 1, 0), self._CELLS - 1)
        return float(self.place == self.target), False

    def observation(self) -> dict[str, np.ndarray]:
        vector = np.zeros(2 * self._CELLS, np.float32)
        vector[self.place] = vector[self._CELLS + self.target] = 1.0
        return {"vector": vector}

    def get_state(self) -> State:
        return {"place": self.place, "target": self.target}

    def set_state(self, state: State) -> None:
        self.place, self.target = int(state["place"]), int(state["target"])


class Reach(Game):
    """Move a point to a target 0.6 away, at most 0.1 per step; a step pays 1 less its distance over 0.6."""

    _DISTANCE = 0.6
    _SPEED = 0.1
    action = Space(shape=(2,), dtype="float32")
    time_limit = _TIME_LIMIT
    best_return = 17.5  # 1/6, 2/6, ... 6/6 on the way, then 14 times 1

    def __init__(self) -> None:
        self.obs = {"vector": Space(shape=(4,), dtype="float32")}
        self.x = self.y = self.target_x = self.target_y = 0.0

    def begin(self, rng: np.random.Generator) -> None:
        self.x, self.y = (float(value) for value in rng.uniform(-0.4, 0.4, 2))
        angle = rng.uniform(0.0, 2.0 * np.pi)
        self.target_x = self.x + self._DISTANCE * float(np.cos(angle))
        self.target_y = self.y + self._DISTANCE * float(np.sin(angle))

    def play(self, action: np.ndarray) -> tuple[float, bool]:
        along, across = action.tolist()
        pace = self._SPEED / max(1.0, (along * along + across * across) ** 0.5)  # no faster along the diagonal
        self.x = min(max(self.x + pace * along, -1.0), 1.0)
        self.y = min(max(self.y + pace * across, -1.0), 1.0)
        distance = ((self.x - self.target_x) ** 2 + (self.y - self.target_y) ** 2) ** 0.5
        return 1.0 - distance / self._DISTANCE, False

    def observation(self) -> dict[str, np.ndarray]:
        return {"vector": np.array((self.x, self.y, self.target_x, self.target_y), np.float32)}

    def get_state(self) -> State:
        return {"places": np.array((self.x, self.y, self.target_x, self.target_y))}

    def set_state(self, state: State) -> None:
        self.x, self.y, self.target_x, self.target_y = (float(value) for value in state["places"])


class Board(Game):
    """Walk on 4x4 fields, seen as an image, to a field three steps away and stay there; a step that ends on it pays 1.

    The target is a green field, the agent a white square inside a field, so that both are seen when they meet. With
    another number of ``fields`` along a side the target is one step less than that away.
    """

    _MOVES = ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
    action = Space(shape=(), dtype="int64", classes=len(_MOVES))
    time_limit = _TIME_LIMIT
    best_return = float(_TIME_LIMIT - 2)
    """On 4x4 fields; one more for each field less along a side."""

    def __init__(self, *, size: int = 64, fields: int = 4) -> None:
        self.obs = {"image": Space(shape=(size, size, 3), dtype="uint8")}
        self._fields = fields
        self._side = size // fields
        self.row, self.column, self.target = 0, 0, (0, 0)

    def begin(self, rng: np.random.Generator) -> None:
        self.row, self.column = (int(value) for value in rng.integers(self._fields, size=2))
        fields = [(row, column) for row in range(self._fields) for column in range(self._fields)]
        away = [one for one in fields if abs(one[0] - self.row) + abs(one[1] - self.column) == self._fields - 1]
        self.target = away[int(rng.integers(len(away)))]

    def play(self, action: np.ndarray) -> tuple[float, bool]:
        down, right = self._MOVES[int(action)]
        self.row = min(max(self.row + down, 0), self._fields - 1)
        self.column = min(max(self.column + right, 0), self._fields - 1)
        return float((self.row, self.column) == self.target), False

    def observation(self) -> dict[str, np.ndarray]:
        image = np.zeros(self.obs["image"].shape, np.uint8)
        side, inset = self._side, self._side // 4
        top, left = self.target[0] * side, self.target[1] * side
        image[top : top + side, left : left + side, 1] = 160
        top, left = self.row * side, self.column * side
        image[top + inset : top + side - inset, left + inset : left + side - inset] = 255
        return {"image": image}

    def get_state(self) -> State:
        return {"row": self.row, "column": self.column, "target": np.array(self.target)}

    def set_state(self, state: State) -> None:
        self.row, self.column = int(state["row"]), int(state["column"])
        self.target = (int(state["target"][0]), int(state["target"][1]))


class Recall(Game):
    """A cue is shown first, then nothing for ``delay`` steps, then a question: the action that names the cue pays 1.

    Any other answer pays -1, and the answer ends the game. What is done before the question has no effect.
    """

    _CUES = 4
    action = Space(shape=(), dtype="int64", classes=_CUES)
    time_limit = None
    best_return = 1.0

    def __init__(self, *, delay: int = 4) -> None:
        self.obs = {"vector": Space(shape=(self._CUES + 1,), dtype="float32")}
        self._question = delay + 1
        self.cue = self.step = 0

    def begin(self, rng: np.random.Generator) -> None:
        self.cue, self.step = int(rng.integers(self._CUES)), 0

    def play(self, action: np.ndarray) -> tuple[float, bool]:
        self.step += 1
        if self.step <= self._question:
            return 0.0, False
        return 1.0 if int(action) == self.cue else -1.0, True

    def observation(self) -> dict[str, np.ndarray]:
        vector = np.zeros(self._CUES + 1, np.float32)
        if self.step == 0:
            vector[self.cue] = 1.0
        elif self.step == self._question:
            vector[self._CUES] = 1.0
        return {"vector": vector}

    def get_state(self) -> State:
        return {"cue": self.cue, "step": self.step}

    def set_state(self, state: State) -> None:
        self.cue, self.step = int(state["cue"]), int(state["step"])


class Doors(Game):
    """Ten doors in a row, each with a right and a wrong key, and ten steps. Opening the last door pays 1.

    A right key costs 0.01 and leads on, a wrong one is free and leads back to the first door: until the reward is
    found, everything speaks against the way to it, and one random episode in 1,024 finds it.
    """

    _KEYS = (0, 1, 1, 0, 1, 0, 0, 1, 1, 0)
    _COST = 0.01
    action = Space(shape=(), dtype="int64", classes=2)
    time_limit = None
    best_return = 0.9

    def __init__(self) -> None:
        self.obs = {"vector": Space(shape=(len(self._KEYS) + 2,), dtype="float32")}
        self.door = self.step = 0

    def begin(self, rng: np.random.Generator) -> None:
        del rng  # every episode begins at the first door
        self.door = self.step = 0

    def play(self, action: np.ndarray) -> tuple[float, bool]:
        is_right = int(action) == self._KEYS[self.door]
        self.door = self.door + 1 if is_right else 0
        self.step += 1
        reward = float(self.door == len(self._KEYS)) - self._COST * is_right
        return reward, self.step == len(self._KEYS)

    def observation(self) -> dict[str, np.ndarray]:
        vector = np.zeros(len(self._KEYS) + 2, np.float32)
        vector[self.door] = 1.0
        vector[-1] = self.step / len(self._KEYS)
        return {"vector": vector}

    def get_state(self) -> State:
        return {"door": self.door, "step": self.step}

    def set_state(self, state: State) -> None:
        self.door, self.step = int(state["door"]), int(state["step"])


class Storm(Game):
    """Lightning strikes every eighth step, everywhere but under a roof of three columns, and ends the game.

    Every step that is survived pays 1. The picture shows, from above to below, how near the lightning is, the roof and
    the player, who moves by one column or stays. After a strike the roof is elsewhere; it can be reached from anywhere.
    """

    _SIDE = 8
    _PIXELS = 8
    """Of a cell: the picture has 64x64."""
    _ROOF = 3
    _SKY = 112
    """Grey: a network that must first learn that nearly all is black forgets the rest over it."""
    _LIMIT = 100
    action = Space(shape=(), dtype="int64", classes=3)
    time_limit = _LIMIT
    best_return = float(_LIMIT)

    def __init__(self) -> None:
        size = self._SIDE * self._PIXELS
        self.obs = {"image": Space(shape=(size, size, 3), dtype="uint8")}
        self.column = self.step = 0
        self.roofs = np.zeros(0, np.int64)
        """The first column of each roof that can come."""

    def begin(self, rng: np.random.Generator) -> None:
        self.column, self.step = int(rng.integers(self._SIDE)), 0
        self.roofs = rng.integers(self._SIDE - self._ROOF + 1, size=self._LIMIT // self._SIDE + 1)

    def play(self, action: np.ndarray) -> tuple[float, bool]:
        self.column = min(max(self.column + int(action) - 1, 0), self._SIDE - 1)
        self.step += 1
        first = self._roof()
        is_hit = self._nearness() == self._SIDE and not first <= self.column < first + self._ROOF
        return float(not is_hit), is_hit

    def observation(self) -> dict[str, np.ndarray]:
        cells = np.full((self._SIDE, self._SIDE, 3), self._SKY, np.uint8)
        first = self._roof()
        cells[:2, : self._nearness()] = (255, 255, 0)
        cells[3:5, first : first + self._ROOF] = 0
        cells[5:, max(0, self.column - 1) : self.column + 2] = 255  # wide, so that neighbouring places look alike
        return {"image": cells.repeat(self._PIXELS, axis=0).repeat(self._PIXELS, axis=1)}

    def get_state(self) -> State:
        return {"column": self.column, "step": self.step, "roofs": self.roofs.copy()}

    def set_state(self, state: State) -> None:
        self.column, self.step = int(state["column"]), int(state["step"])
        self.roofs = np.array(state["roofs"])

    def _nearness(self) -> int:
        """From 1 to 8, where lightning strikes."""
        return self.step % self._SIDE + 1

    def _roof(self) -> int:
        return int(self.roofs[self.step // self._SIDE])
