"""Scores and lengths of the episodes that N environments are playing."""

from __future__ import annotations

import numpy as np

from reverie.types import Episode, Observation, State


class EpisodeTracker:
    """Add every observation once; an episode comes out with its last one."""

    def __init__(self, num_envs: int) -> None:
        self._score = np.zeros(num_envs, np.float64)
        self._length = np.zeros(num_envs, np.int64)

    def add(self, seen: Observation) -> dict[int, Episode]:
        """The episodes that end here, by environment."""
        is_first, is_last = seen.is_first.numpy(), seen.is_last.numpy()
        self._score = np.where(is_first, 0.0, self._score) + seen.reward.numpy().astype(np.float64)
        self._length = np.where(is_first, 0, self._length + 1)
        ended = np.flatnonzero(is_last).tolist()
        return {i: Episode(score=float(self._score[i]), length=int(self._length[i])) for i in ended}

    def get_state(self) -> State:
        return {"score": self._score.copy(), "length": self._length.copy()}

    def set_state(self, state: State) -> None:
        self._score, self._length = state["score"].copy(), state["length"].copy()
