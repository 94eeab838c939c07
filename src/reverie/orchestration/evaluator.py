"""Scores a policy on environments and random streams of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from reverie.buffers.base import Buffer
from reverie.environments.episodes import EpisodeTracker, MeanScores
from reverie.environments.vector import VectorEnvironment
from reverie.orchestration.held_out import HeldOut
from reverie.runtime.acting import Acting
from reverie.runtime.rng import derived_seed
from reverie.types import Episode, Policy, ReverieError, Row, State, require

EVALUATION_BUFFER = "evaluation"
"""The buffer of this name receives the rows of evaluations, and nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OpenLoopConfig:
    """How a world model is measured and shown on the rows of an evaluation."""

    sequences: int = 16
    """Sequences that the metrics ``eval/model/`` come from; 0 means no metrics and no pictures."""
    length: int = 50
    """Rows of a sequence, context included. In a whole episode the model is corrected after so many."""
    context: int = 5
    """Rows that the model sees before it imagines, at the start of a sequence and of each episode in it."""
    pictures_every: int | None = 1
    """Evaluations from one with pictures to the next, beginning with the first; null means none."""
    columns: int = 4
    """Sequences in a picture, and moments at which plans are shown step by step."""
    episode_length: int = 300
    """Rows shown of the first episode of an evaluation, and planned from, at most; 0 means none."""

    def __post_init__(self) -> None:
        where = "evaluation.open_loop"
        require(f"{where}.sequences", self.sequences, at_least=0)
        require(f"{where}.context", self.context, at_least=1)
        require(f"{where}.length", self.length, at_least=self.context + 1)
        if self.pictures_every is not None:
            require(f"{where}.pictures_every", self.pictures_every, at_least=1)
        require(f"{where}.columns", self.columns, at_least=1)
        require(f"{where}.episode_length", self.episode_length, at_least=0)


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    every_steps: int | None = 10_000
    """Agent steps between two evaluations in online phases; null leaves them to phases with an ``evaluate`` hook."""
    every_updates: int | None = None
    """Updates between two evaluations, where phases learn without taking steps; null means none."""
    episodes: int = 10
    envs: int = 10
    """Environments that play side by side."""
    open_loop: OpenLoopConfig = field(default_factory=OpenLoopConfig)

    def __post_init__(self) -> None:
        for name in ("every_steps", "every_updates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ReverieError(f"evaluation.{name} must be at least 1 or null, got {value}.")
        if self.episodes < 1 or self.envs < 1:
            raise ReverieError(
                f"evaluation.episodes ({self.episodes}) and evaluation.envs ({self.envs}) must be at least 1."
            )


def in_words(scores: Mapping[str, float]) -> str:
    return (
        f"mean return {scores['return_mean']:.1f} over {scores['episodes']:.0f} episodes "
        f"(from {scores['return_min']:.1f} to {scores['return_max']:.1f})."
    )


class Evaluator:
    """Plays the same number of episodes in every environment, so that short episodes are not counted more often."""

    def __init__(
        self,
        make_env: Callable[[], VectorEnvironment],
        *,
        episodes: int,
        seed: int,
        acting: Acting,
        buffer: Buffer | None,
    ) -> None:
        """``make_env`` is called before the first evaluation: many runs never come to one."""
        self._make_env = make_env
        self._made: VectorEnvironment | None = None
        self._episodes = episodes
        self._seed = seed
        self._acting = acting
        self._buffer = buffer
        self._evaluations = 0
        self._num_rows = 0

    @property
    def evaluations(self) -> int:
        """How many there have been in this run."""
        return self._evaluations

    @property
    def held_out(self) -> HeldOut | None:
        """The rows of the last evaluation; None without a buffer that keeps them."""
        if self._buffer is None:
            return None
        return HeldOut(buffer=self._buffer, num_streams=self._env.num_envs, num_rows=self._num_rows)

    def evaluate(self, policy: Policy, should_stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Scores of one evaluation. Its rows go to the evaluation buffer, where they are nobody's training data.

        Asked to stop, it gives None, and has neither counted the evaluation nor touched the buffer.
        """
        deaths = self._env.deaths
        episodes = self._played(policy, should_stop)
        if episodes is None:
            return None
        self._evaluations += 1
        scores = np.array([episode.score for episode in episodes])
        others = MeanScores()
        for episode in episodes:
            others.add(episode)
        return {
            "return_mean": float(scores.mean()),
            "return_std": float(scores.std()),
            "return_min": float(scores.min()),
            "return_max": float(scores.max()),
            "length_mean": float(np.mean([episode.length for episode in episodes])),
            "episodes": float(len(episodes)),
            **others.means(),
            **self._env.summary(others.means()),
            **({"simulator_deaths": float(self._env.deaths - deaths)} if self._env.deaths > deaths else {}),
        }

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def notices(self) -> list[str]:
        """What happened to the simulators since the last call that a person should read."""
        return [] if self._made is None else self._made.notices()

    @property
    def _env(self) -> VectorEnvironment:
        if self._made is None:
            self._made = self._make_env()
        return self._made

    def get_state(self) -> State:
        return {"evaluations": self._evaluations}

    def set_state(self, state: State) -> None:
        self._evaluations = state["evaluations"]

    def _keep(self, rows: Collection[Row]) -> None:
        self._num_rows = len(rows)
        if self._buffer is not None:
            for row in rows:
                self._buffer.append(row)

    def _played(self, policy: Policy, should_stop: Callable[[], bool]) -> list[Episode] | None:
        num_envs = self._env.num_envs
        quota = np.array([self._episodes // num_envs + (i < self._episodes % num_envs) for i in range(num_envs)])
        tracker = EpisodeTracker(num_envs)
        # The buffer could not keep more rows than this anyway.
        rows: deque[Row] = deque(maxlen=0 if self._buffer is None else self._buffer.stream_length)
        seen = self._env.reset(derived_seed(self._seed, f"evaluation/{self._evaluations}") % 2**31)
        carry = policy.initial(num_envs)
        episodes: list[Episode] = []
        while not should_stop():
            for index, episode in tracker.add(seen).items():
                if quota[index] > 0:
                    quota[index] -= 1
                    episodes.append(episode)
            carry, action, row = self._acting.step(policy, carry, seen, mode="eval")
            rows.append(row)
            if not quota.any():
                self._keep(rows)
                return episodes
            seen = self._env.step(action)
        return None
