"""The evolution of a controller in the task and in dreams, one step of all players at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import Generator, Tensor, nn

from reverie.components.controllers.controller_weights import GivenWeights
from reverie.components.controllers.evolution import Evolution
from reverie.components.controllers.linear_controller import LinearController
from reverie.components.controllers.rounds import Rounds
from reverie.components.dreams.latent_dream import LatentDream
from reverie.components.dreams.starts import DreamStarts
from reverie.components.dynamics.mdn_rnn import Memory
from reverie.types import Episode, Metrics, State


class EvolutionInTask:
    """Contestants play in the training environments, each with weights of its own."""

    def __init__(self, evolution: Evolution, weights: GivenWeights, *, num_envs: int, rng: Generator) -> None:
        self._evolution, self._weights = evolution, weights
        self._rounds = Rounds(evolution, num_envs=num_envs, rng=rng)

    def enter(self, *, is_undisturbed: bool) -> int | None:
        """Before each step of the environments: the seed with which they must be reset, or None to go on.

        ``is_undisturbed`` is False when somebody else has acted in them since.
        """
        if self._evolution.enter("task"):
            self._rounds.restart()
        if not is_undisturbed:
            self._rounds.abort()
        if self._rounds.has_begun or self._rounds.are_over:
            return None
        weights, seed = self._rounds.begin()
        self._weights.present = self._weights.present.new_tensor(weights, dtype=torch.float32)
        return seed

    def add(self, ended: Mapping[int, Episode]) -> None:
        if self._rounds.has_begun:
            self._rounds.add(ended)

    def advance(self, controller: LinearController) -> Metrics:
        """Judge, if everybody has played; else there are no metrics."""
        if self._evolution.arena != "task" or not self._rounds.are_over:
            return {}
        metrics = judged(self._evolution, self._rounds.returns(), controller)
        self._rounds.restart()
        return metrics

    def get_state(self) -> State:
        return {"rounds": self._rounds.get_state(), "weights": self._weights.present.clone()}

    def set_state(self, state: State) -> None:
        self._rounds.set_state(state["rounds"])
        self._weights.present = state["weights"].to(self._weights.present.device)


class EvolutionInDream:
    """All episodes of all contestants are dreamed side by side."""

    def __init__(self, evolution: Evolution, dream: LatentDream, starts: DreamStarts, *, rng: Generator) -> None:
        self._evolution, self._dream, self._starts, self._rng = evolution, dream, starts, rng
        self._returns: Tensor | None = None
        """Of every dream so far; None when none has begun."""
        self._weights = torch.zeros(0, device=rng.device)
        """One row per dream."""

    def step(self, controller: LinearController) -> Metrics:
        """One step of every dream; metrics come when the last of them has ended."""
        if self._evolution.enter("dream"):
            self._returns = None
        if self._returns is None:
            self._begin()
        assert self._returns is not None
        now = self._dream.row()
        memory = Memory(hidden=now.stored["hidden"], cell=now.stored["cell"])
        action = controller.actions(self._weights, now.stored["latent"], memory)
        after = self._dream.step(controller.vector(action))
        self._returns += after.reward
        if not after.is_last.all():
            return {}
        returns = self._returns.view(-1, self._evolution.episodes_of_each()).double().mean(1).cpu().numpy()
        self._returns = None
        return judged(self._evolution, returns, controller)

    def get_state(self) -> State:
        if self._returns is None:
            return {}
        return {"returns": self._returns.clone(), "weights": self._weights.clone(), "dream": self._dream.get_state()}

    def set_state(self, state: State) -> None:
        self._returns = None
        if state:
            device = self._rng.device
            self._returns, self._weights = state["returns"].to(device), state["weights"].to(device)
            self._dream.set_state(state["dream"])

    def _begin(self) -> None:
        episodes = self._evolution.episodes_of_each()
        contestants = torch.tensor(self._evolution.contestants(), dtype=torch.float32, device=self._rng.device)
        self._weights = contestants.repeat_interleave(episodes, 0)
        is_paired = self._evolution.has_antithetic_seeds and len(contestants) > 1
        copies = 2 if is_paired else 1
        starts = self._starts.drawn(len(self._weights) // copies, self._rng)
        self._dream.reset(starts.repeat(copies, 1), copies=copies)
        self._returns = torch.zeros(len(self._weights), device=self._rng.device)


def digest(*modules: nn.Module) -> str:
    """Of all their numbers, on whatever device they lie."""
    found = hashlib.blake2b(digest_size=16)
    for module in modules:
        for parameter in module.parameters():
            found.update(parameter.detach().cpu().numpy().tobytes())
    return found.hexdigest()


def judged(evolution: Evolution, returns: np.ndarray, controller: LinearController) -> Metrics:
    """The metrics of what was just played. The controller acts with the best weights from now on."""
    values = evolution.judge(returns)
    acting = torch.tensor(evolution.acting(), dtype=torch.float32)
    controller.weights.copy_(acting)
    return {name: torch.tensor(value) for name, value in values.items()}
