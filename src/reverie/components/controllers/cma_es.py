"""CMA-ES on the library `cma`, with random numbers of a stream of ours and a state of arrays and numbers.

The library's object cannot be saved without pickle. What it carries from one generation to the next are the numbers and
arrays of a few of its parts. They are copied before a generation is drawn, together with the normal numbers that it is
drawn with; a restored object gets them back and draws the same generation again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Generator

from reverie.types import State, require

_PARTS = ("itself", "sm", "adapt_sigma", "sigma_vec")
"""Of the library's object: itself, its sampler, its step size and its scaling."""


class CmaEs:
    """Maximises. ``solutions`` are tried by others, ``tell`` says what each was worth and draws the next ones."""

    def __init__(self, *, parameter_count: int, population: int, sigma: float, rng: Generator) -> None:
        """``rng`` is a stream on the CPU."""
        require("population of CMA-ES", population, at_least=4)
        require("sigma of CMA-ES", sigma, at_least=1e-12, at_most=1e6)
        self._count, self._population, self._sigma, self._rng = parameter_count, population, sigma, rng
        self._noise: np.ndarray | None = None
        """Normal numbers [population, parameters] that ``solutions`` were drawn with."""
        self._again: np.ndarray | None = None
        """Those that the next draw takes instead of new ones."""
        self._before: State = {}
        """The library's numbers before the draw."""
        self.solutions = np.zeros((0, parameter_count))
        """[population, parameters]; none before the first ``ask``."""
        self._library = self._made()

    @property
    def mean(self) -> np.ndarray:
        return np.array(self._library.mean)

    @property
    def step_size(self) -> float:
        return float(self._library.sigma)

    def ask(self) -> None:
        """Draw the next ``solutions``."""
        self._before = {part: _numbers(self._part(part)) for part in _PARTS}
        self.solutions = np.array(self._library.ask())

    def tell(self, fitness: np.ndarray) -> None:
        """What each solution was worth, [population]."""
        self._library.tell(list(self.solutions), (-fitness).tolist())
        self.ask()

    def get_state(self) -> State:
        return {"noise": self._noise, "parts": self._before} if self._before else {}

    def set_state(self, state: State) -> None:
        self._library, self._before = self._made(), {}
        self.solutions = self.solutions[:0]
        if not state:
            return
        noise = np.array(state["noise"])
        if state["parts"]["itself"]["countiter"]:
            # The library makes some of what it holds in its first generation.
            self._again = noise.copy()
            self._library.tell(self._library.ask(), list(range(self._population)))
        for part, numbers in state["parts"].items():
            for name, value in numbers.items():
                # A number of numpy was saved as an array without axes.
                setattr(self._part(part), name, np.array(value)[()] if isinstance(value, np.ndarray) else value)
        self._again = noise
        self.ask()

    def _made(self) -> Any:
        import cma  # slow to import, and only needed where something evolves

        options = {
            "popsize": self._population,
            "randn": self._drawn,
            "seed": np.nan,  # numpy's global generator is left alone
            "CMA_mirrors": 0,  # of small populations, whose mirrors it would remember from one generation to the next
            "verbose": -9,
            "verb_log": 0,
        }
        return cma.CMAEvolutionStrategy(np.zeros(self._count), self._sigma, options)

    def _part(self, name: str) -> Any:
        return self._library if name == "itself" else getattr(self._library, name)

    def _drawn(self, *shape: int) -> np.ndarray:
        """What the library asks for in the place of ``numpy.random.randn``."""
        drawn, self._again = self._again, None
        if drawn is None:
            drawn = torch.randn(shape, dtype=torch.float64, generator=self._rng).numpy()
        self._noise = drawn.copy()
        return drawn


def _numbers(part: Any) -> State:
    """A copy of all attributes that are numbers, arrays or None."""
    found: State = {}
    for name, value in vars(part).items():
        if isinstance(value, np.ndarray | np.number):
            found[name] = np.array(value)
        elif value is None or type(value) in (bool, int, float):
            found[name] = value
    return found
