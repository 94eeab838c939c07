"""Scores and lengths of the episodes that N environments are playing."""

from __future__ import annotations

import numpy as np

from reverie.types import Episode, Observation, State


class MeanScores:
    """The mean of each of the episodes' ``scores``, over all episodes that have it."""

    def __init__(self) -> None:
        self._totals: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def add(self, episode: Episode) -> None:
        for name, value in episode.scores.items():
            self._totals[name] = self._totals.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0) + 1

    def means(self) -> dict[str, float]:
        return {name: total / self._counts[name] for name, total in self._totals.items()}

    def get_state(self) -> State:
        return {"totals": dict(self._totals), "counts": dict(self._counts)}

    def set_state(self, state: State) -> None:
        self._totals, self._counts = dict(state["totals"]), dict(state["counts"])


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
        return {
            i: Episode(score=float(self._score[i]), length=int(self._length[i]), scores=seen.scores.get(i, {}))
            for i in ended
        }

    def get_state(self) -> State:
        return {"score": self._score.copy(), "length": self._length.copy()}

    def set_state(self, state: State) -> None:
        self._score, self._length = state["score"].copy(), state["length"].copy()
