"""Scores a policy on environments and random streams of its own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch

from reverie.buffers.base import Buffer
from reverie.environments.episodes import EpisodeTracker, MeanScores
from reverie.environments.vector import VectorEnvironment
from reverie.runtime.rng import derived_seed
from reverie.types import Episode, Policy, ReverieError, Row, State

EVALUATION_BUFFER = "evaluation"
"""The buffer of this name receives the rows of evaluations, and nothing else."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EvaluationConfig:
    every_steps: int | None = 10_000
    """Agent steps between two evaluations in online phases; null leaves them to phases with an ``evaluate`` hook."""
    episodes: int = 10
    envs: int = 10
    """Environments that play side by side."""

    def __post_init__(self) -> None:
        if self.every_steps is not None and self.every_steps < 1:
            raise ReverieError(f"evaluation.every_steps must be at least 1 or null, got {self.every_steps}.")
        if self.episodes < 1 or self.envs < 1:
            raise ReverieError(
                f"evaluation.episodes ({self.episodes}) and evaluation.envs ({self.envs}) must be at least 1."
            )


class Evaluator:
    """Plays the same number of episodes in every environment, so that short episodes are not counted more often."""

    def __init__(
        self, env: VectorEnvironment, *, episodes: int, seed: int, device: torch.device, buffer: Buffer | None
    ) -> None:
        self._env = env
        self._episodes = episodes
        self._seed = seed
        self._device = device
        self._buffer = buffer
        self._evaluations = 0

    def evaluate(self, policy: Policy, should_stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Scores of one evaluation. Its rows go to the evaluation buffer, where they are nobody's training data.

        Asked to stop, it gives None, and has neither counted the evaluation nor touched the buffer.
        """
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
        }

    def close(self) -> None:
        self._env.close()

    def get_state(self) -> State:
        return {"evaluations": self._evaluations}

    def set_state(self, state: State) -> None:
        self._evaluations = state["evaluations"]

    def _keep(self, rows: Iterable[Row]) -> None:
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
            seen = seen.to(self._device)
            carry, action, stored = policy.act(carry, seen, mode="eval")
            rows.append(Row.complete(seen, action, stored))
            if not quota.any():
                self._keep(rows)
                return episodes
            seen = self._env.step(action.cpu())
        return None
