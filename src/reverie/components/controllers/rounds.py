"""Who plays where: the contestants of an evolution, round by round, in the environments that there are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Generator

from reverie.components.controllers.evolution import Evolution
from reverie.types import Episode, ReverieError, State


@dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """How the contestants of one stage are spread over environments."""

    contestants: int
    in_a_round: int
    """Contestants that play side by side, each in ``copies`` environments."""
    copies: int
    episodes: int
    """Of each environment in a round, one after the other."""
    different_rounds: int
    """After so many the seeds begin again."""

    @property
    def rounds(self) -> int:
        return self.contestants // self.in_a_round

    def players(self, number: int) -> np.ndarray:
        """The contestant in each environment in the round of this number."""
        return number * self.in_a_round + np.repeat(np.arange(self.in_a_round), self.copies)


class Rounds:
    """One round at a time: all environments begin together, and it is over when each has played its episodes.

    An episode is known by the seed of its round, by its environment and by its number there, so a contestant of the
    second half meets what the one of the first half met in the same place.
    """

    def __init__(self, evolution: Evolution, *, num_envs: int, rng: Generator) -> None:
        """``rng`` is a stream on the CPU. Numbers that do not fit each other are refused."""
        self._evolution, self._num_envs, self._rng = evolution, num_envs, rng
        population_layout(evolution, num_envs)
        self.restart()

    def restart(self) -> None:
        """Forget what was played of the present contestants."""
        self._seeds: list[int] = []
        self._number = 0
        self._left: np.ndarray | None = None
        """Episodes that each environment still has to play; None between two rounds."""
        self._totals = np.zeros(0)

    @property
    def has_begun(self) -> bool:
        """Whether a round is being played."""
        return self._left is not None

    @property
    def are_over(self) -> bool:
        """Whether everybody has played."""
        return self._left is None and self._number == self._layout().rounds

    def begin(self) -> tuple[np.ndarray, int]:
        """The weights [num_envs, parameters] of the next round, and the seed of its episodes."""
        layout = self._layout()
        if not self._seeds:
            drawn = torch.randint(2**31 - 1, (layout.different_rounds,), generator=self._rng)
            self._seeds, self._totals = drawn.tolist(), np.zeros(layout.contestants)
        self._left = np.full(self._num_envs, layout.episodes)
        players = layout.players(self._number)
        return self._evolution.contestants()[players], self._seeds[self._number % layout.different_rounds]

    def abort(self) -> None:
        """The round that is being played does not count: somebody else has used the environments."""
        if self._left is not None:
            self._totals[self._layout().players(self._number)] = 0.0
            self._left = None

    def add(self, ended: Mapping[int, Episode]) -> None:
        """The episodes that have ended, by environment."""
        assert self._left is not None, "an episode of no round"
        players = self._layout().players(self._number)
        for index, episode in ended.items():
            if self._left[index] > 0:
                self._left[index] -= 1
                self._totals[players[index]] += episode.score
        if not self._left.any():
            self._left = None
            self._number += 1

    def returns(self) -> np.ndarray:
        """The mean return of each contestant."""
        layout = self._layout()
        return self._totals / (layout.copies * layout.episodes)

    def get_state(self) -> State:
        left = None if self._left is None else self._left.copy()
        return {"seeds": list(self._seeds), "number": self._number, "left": left, "totals": self._totals.copy()}

    def set_state(self, state: State) -> None:
        self._seeds, self._number = list(state["seeds"]), state["number"]
        self._left = None if state["left"] is None else np.array(state["left"])
        self._totals = np.array(state["totals"])

    def _layout(self) -> Layout:
        if self._evolution.stage == "generation":
            return population_layout(self._evolution, self._num_envs)
        episodes = -(-self._evolution.mean_episodes // self._num_envs)
        return Layout(contestants=1, in_a_round=1, copies=self._num_envs, episodes=episodes, different_rounds=1)


def population_layout(evolution: Evolution, num_envs: int) -> Layout:
    """The layout of a generation. Every environment plays in every round, and both halves in the same places."""
    population, episodes = evolution.population, evolution.episodes
    unlike = population // 2 if evolution.has_antithetic_seeds else population
    in_a_round = min(num_envs, unlike)
    copies = num_envs // in_a_round
    if num_envs % in_a_round or unlike % in_a_round or episodes % copies:
        half = "half of " if evolution.has_antithetic_seeds else ""
        raise ReverieError(
            f"{num_envs} environments cannot be shared by a population of {population} with {episodes} episodes each: "
            f"environment.num_envs must divide {half}the population ({unlike}), or be that times a divisor of "
            "controller.population.episodes."
        )
    return Layout(
        contestants=population,
        in_a_round=in_a_round,
        copies=copies,
        episodes=episodes // copies,
        different_rounds=unlike // in_a_round,
    )
