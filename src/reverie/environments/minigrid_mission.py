"""The mission of a MiniGrid level as a vector of fixed length."""

from __future__ import annotations

import numpy as np

from reverie.types import ReverieError

# fmt: off
VOCABULARY = (
    "a", "after", "and", "at", "avoid", "ball", "behind", "blue", "box", "door", "end", "fetch", "find", "from",
    "front", "get", "go", "goal", "green", "grey", "hallway", "in", "key", "lava", "left", "matching", "must", "near",
    "next", "object", "of", "on", "open", "opening", "pick", "purple", "put", "reach", "red", "right", "room",
    "rooms", "square", "the", "then", "to", "traverse", "unlock", "up", "use", "yellow", "you", "your",
)
# fmt: on
"""Every word that a mission of MiniGrid or BabyAI can hold."""

_BITS = 6
"""Enough to tell 63 words apart."""


class MissionCodes:
    """The words in their order, at ``num_words`` places of six numbers each.

    A word is its number in the vocabulary, counted from 1, in binary digits of -1 and 1; an empty place is all 0. So
    the order is kept (it tells "put the ball next to the box" from its opposite), and the vector stays short.
    """

    def __init__(self, *, num_words: int, task: str) -> None:
        self._num_words = num_words
        self._task = task
        numbers = np.arange(1, len(VOCABULARY) + 1)
        bits = (numbers[:, None] >> np.arange(_BITS)) & 1
        self._codes = (2 * bits - 1).astype(np.float32)
        self.dim = num_words * _BITS

    def value(self, mission: str) -> np.ndarray:
        numbers = _numbers(mission, self._task)
        if len(numbers) > self._num_words:
            raise ReverieError(
                f"{self._task} gave a mission of {len(numbers)} words, but mission_words is {self._num_words}: "
                f"set it to {len(numbers)} or more."
            )
        codes = np.zeros((self._num_words, _BITS), np.float32)
        codes[: len(numbers)] = self._codes[numbers]
        return codes.reshape(-1)


class MissionWords:
    """How often each word of the vocabulary occurs; what their order says is lost."""

    dim = len(VOCABULARY)

    def __init__(self, *, task: str) -> None:
        self._task = task

    def value(self, mission: str) -> np.ndarray:
        return np.bincount(_numbers(mission, self._task), minlength=self.dim).astype(np.float32)


_NUMBER = {word: number for number, word in enumerate(VOCABULARY)}


def _numbers(mission: str, task: str) -> np.ndarray:
    """The places of a mission's words in the vocabulary."""
    words = mission.lower().replace(",", " ").split()
    unknown = [word for word in words if word not in _NUMBER]
    if unknown:
        raise ReverieError(
            f"The mission of {task} holds a word that is not in the vocabulary ('{unknown[0]}'): set mission to none."
        )
    return np.array([_NUMBER[word] for word in words], dtype=np.int64)
