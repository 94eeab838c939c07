"""The scores a person follows: episodes so far, how good the agent is now, how good it has been."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from reverie.environments.episodes import MeanScores
from reverie.types import Episode, State

RECENT = 10


class Scoreboard:
    """``now`` is the mean score of the last ten training episodes, ``best`` the highest that mean has been."""

    def __init__(self) -> None:
        self.episodes = 0
        self.best: float | None = None
        self.evaluation: dict[str, float] = {}
        self.mean_scores = MeanScores()
        """Over all training episodes of the run, as Crafter's success rates are defined."""
        self._recent: deque[float] = deque(maxlen=RECENT)

    @property
    def now(self) -> float | None:
        return sum(self._recent) / len(self._recent) if self._recent else None

    def add(self, episodes: Sequence[Episode]) -> None:
        for episode in episodes:
            self.episodes += 1
            self._recent.append(episode.score)
            self.mean_scores.add(episode)
            if len(self._recent) == RECENT:
                self.best = max(sum(self._recent) / RECENT, self.best if self.best is not None else float("-inf"))

    def add_evaluation(self, evaluation: Mapping[str, float]) -> None:
        self.evaluation = dict(evaluation)

    def get_state(self) -> State:
        return {
            "episodes": self.episodes,
            "best": self.best,
            "evaluation": dict(self.evaluation),
            "recent": list(self._recent),
            "mean_scores": self.mean_scores.get_state(),
        }

    def set_state(self, state: State) -> None:
        self.episodes, self.best = state["episodes"], state["best"]
        self.evaluation = dict(state["evaluation"])
        self._recent = deque(state["recent"], maxlen=RECENT)
        self.mean_scores.set_state(state["mean_scores"])
