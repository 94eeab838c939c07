"""The evolution of a controller: generations that are judged by others, and the best mean that was found on the way."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Generator

from reverie.components.controllers.cma_es import CmaEs
from reverie.types import ReverieError, State, require

Arena = Literal["task", "dream"]
"""Where contestants play; returns of one are not compared with those of the other."""
Stage = Literal["generation", "mean"]

HISTORY = ("generation", "mean", "best", "worst", "deviation")
"""What is kept of every generation: its number, and the mean returns of its members."""


class Evolution:
    """Says whose turn it is (``contestants``) and is told what they scored (``judge``).

    After every ``mean_every`` generations the mean of the distribution plays ``mean_episodes`` by itself. The best mean
    so far is what the run is about; before there is one, the present mean acts. Members are compared by their mean
    return less ``weight_decay`` times the mean square of their weights. With ``has_antithetic_seeds`` the second half
    of a population plays the same episodes as the first.
    """

    def __init__(
        self,
        *,
        parameter_count: int,
        rng: Generator,
        population: int = 64,
        episodes: int = 16,
        sigma: float = 0.1,
        weight_decay: float = 0.01,
        has_antithetic_seeds: bool = True,
        mean_every: int = 25,
        mean_episodes: int = 1024,
    ) -> None:
        """``rng`` is a stream on the CPU; ``episodes`` are those of each member of a generation."""
        where = "controller.population"
        require(f"{where}.episodes", episodes, at_least=1)
        require(f"{where}.weight_decay", weight_decay, at_least=0)
        require(f"{where}.mean_every", mean_every, at_least=1)
        require(f"{where}.mean_episodes", mean_episodes, at_least=1)
        if has_antithetic_seeds and population % 2:
            raise ReverieError(
                f"`{where}.population` must be even, because its second half plays the episodes of the first, got "
                f"{population}; or set {where}.has_antithetic_seeds=false."
            )
        self._search = CmaEs(parameter_count=parameter_count, population=population, sigma=sigma, rng=rng)
        self.population, self.episodes = population, episodes
        self.has_antithetic_seeds, self.mean_episodes = has_antithetic_seeds, mean_episodes
        self._weight_decay, self._mean_every = weight_decay, mean_every
        self.arena: Arena | None = None
        self._model: str | None = None
        self.stage: Stage = "generation"
        self.generation = 0
        """How many were judged."""
        self._best: np.ndarray | None = None
        self._best_return = -np.inf
        self._history: list[list[float]] = []

    def enter(self, arena: Arena) -> bool:
        """Play there from now on. Whether that is a change: what was being judged then begins again."""
        if arena == self.arena:
            return False
        self.arena, self.stage = arena, "generation"
        self._best, self._best_return = None, -np.inf
        if not len(self._search.solutions):
            self._search.ask()
        return True

    def know(self, model: str) -> None:
        """A digest of the model that contestants look through. What was judged through another one counts no more."""
        if model != self._model:
            self.arena, self._model = None, model

    def contestants(self) -> np.ndarray:
        """Weights [M, parameters]: a whole generation, or the mean alone."""
        return self._search.solutions if self.stage == "generation" else self._search.mean[None]

    def episodes_of_each(self) -> int:
        return self.episodes if self.stage == "generation" else self.mean_episodes

    def judge(self, returns: np.ndarray) -> dict[str, float]:
        """The mean return of each contestant [M]. Gives metrics; the next contestants are ready."""
        return self._judged_generation(returns) if self.stage == "generation" else self._judged_mean(returns)

    def acting(self) -> np.ndarray:
        """The weights that the run would act with now."""
        return self._search.mean if self._best is None else self._best

    def history(self) -> np.ndarray:
        """[generations, len(HISTORY)]"""
        return np.array(self._history).reshape(-1, len(HISTORY))

    def get_state(self) -> State:
        return {
            "search": self._search.get_state(),
            "arena": self.arena,
            "model": self._model,
            "stage": self.stage,
            "generation": self.generation,
            "best": self._best,
            "best_return": self._best_return,
            "history": self.history(),
        }

    def set_state(self, state: State) -> None:
        self._search.set_state(state["search"])
        self.arena, self.stage, self.generation = state["arena"], state["stage"], state["generation"]
        self._model = state.get("model")  # runs of earlier versions did not say
        self._best = None if state["best"] is None else np.array(state["best"])
        self._best_return = state["best_return"]
        self._history = np.array(state["history"]).tolist()

    def _judged_generation(self, returns: np.ndarray) -> dict[str, float]:
        solutions = self._search.solutions
        self._search.tell(returns - self._weight_decay * np.square(solutions).mean(axis=1))
        self.generation += 1
        if self.generation % self._mean_every == 0:
            self.stage = "mean"
        mean, best, worst = float(returns.mean()), float(returns.max()), float(returns.min())
        self._history.append([float(self.generation), mean, best, worst, float(returns.std())])
        return {
            "fitness_mean": mean,
            "fitness_best": best,
            "fitness_worst": worst,
            "fitness_deviation": float(returns.std()),
            "generation": float(self.generation),
            "step_size": self._search.step_size,
        }

    def _judged_mean(self, returns: np.ndarray) -> dict[str, float]:
        self.stage = "generation"
        found = float(returns[0])
        if found > self._best_return:
            self._best, self._best_return = self._search.mean, found
        return {"mean_fitness": found, "best_mean_fitness": self._best_return}
