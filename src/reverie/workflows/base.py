"""What every algorithm is to the rest of the laboratory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Generator, Tensor, nn

from reverie.environments.episodes import EpisodeTracker
from reverie.runtime.acting import Acting
from reverie.types import (
    Carry,
    Episode,
    Metrics,
    Mode,
    Observation,
    Phase,
    Policy,
    ReverieError,
    Row,
    State,
    Stateful,
)
from reverie.workflows.context import WorkflowContext


@dataclass(kw_only=True, slots=True)
class CollectResult:
    steps: int
    """Agent steps taken: one per environment."""
    episodes: list[Episode]
    """Episodes whose last observation is in ``trajectory``."""
    trajectory: Row
    metrics: Metrics = field(default_factory=dict)
    """Logged under ``collect/``."""
    extras: Metrics = field(default_factory=dict)
    """Logged under ``workflow/``."""


@dataclass(kw_only=True, slots=True)
class UpdateResult:
    metrics: Metrics
    write_back: dict[str, Tensor] | None = None
    """New values [B, T, ...] of what the policy stored with the last T rows of the batch; finite ones only."""
    priorities: Tensor | None = None
    """How much each sequence of the batch is worth seeing again [B], for buffers whose sampler asks for it."""


class WorldModelWorkflow(ABC):
    """One algorithm. Its hooks are methods ``hook(batch, *, phase) -> UpdateResult`` that a phase names in YAML;
    a hook whose phase gives it no batch is called as ``hook(phase=phase)``.

    A workflow computes and updates; loops, files and logging are not its business.
    """

    context_rows: ClassVar[int] = 0
    """Rows before each training window that only supply a starting latent."""

    min_batch_length: ClassVar[int] = 1
    """Rows that a training window must have at least."""

    gives_priorities: ClassVar[bool] = False
    """Whether every updating hook that takes a batch says how much its sequences are worth."""

    reads_weights: ClassVar[bool] = False
    """Whether they let the sequences of a batch count as its ``weight`` says."""

    def initialize(self, context: WorkflowContext) -> None:
        """Take the parts from the context. Subclasses extend this; parameters are on their device afterwards."""
        self._context = context
        self.acting = context.acting or Acting(context.rng, context.device)
        """How the policies are asked on this device."""
        self.acting.follow(self.modules)
        for module in self.modules().values():
            module.to(context.device)
        self._carry: Carry | None = None
        self._acting: str | None = None
        self._reset_episode_tracking(context.train_env.num_envs if context.train_env else 0)

    def modules(self) -> dict[str, nn.Module]:
        """Every network, by the name that the configuration gives it."""
        return {**self._context.components.modules(), **self._context.controllers.modules()}

    @abstractmethod
    def policy(self, controller: str | None) -> Policy:
        """The policy that acts when a phase says ``controller: NAME``, or the usual one for None.

        The same object each time; it can be copied with `copy.deepcopy`, and holds neither workflow nor environments.
        """

    def collect_step(self, step: int, *, phase: Phase) -> CollectResult:
        """Act once in every training environment. ``step`` counts agent steps before this one."""
        env = self._context.train_env
        if env is None:
            raise ReverieError(f"phase '{phase.name}' collects, but this run has no environment.")
        policy = self.policy(phase.controller)
        if self._carry is None or self._acting != phase.controller:
            self._carry, self._acting = policy.initial(env.num_envs), phase.controller
        seen = env.observe()
        episodes = self._update_episode_stats(seen)
        self._carry, action, row = self.acting.step(policy, self._carry, seen, mode="train")
        env.begin_step(action)  # the simulators work while the caller goes on
        return CollectResult(steps=env.num_envs, episodes=episodes, trajectory=row)

    def _acting_rngs(self) -> dict[Mode, Generator]:
        """Training and evaluation draw from streams of their own, so that one never shifts the other."""
        return {"train": self._context.rng.stream("act/train"), "eval": self._context.rng.stream("act/eval")}

    def optimizers(self) -> Mapping[str, Stateful]:
        """Whatever must be saved under ``optimizers`` in a checkpoint."""
        return {}

    def get_state(self) -> State:
        return {
            "components": self._context.components.get_state(),
            "controllers": self._context.controllers.get_state(),
            "optimizers": {name: optimizer.get_state() for name, optimizer in self.optimizers().items()},
            "workflow_custom": {
                "carry": None if self._carry is None else {key: value.clone() for key, value in self._carry.items()},
                "acting": self._acting,
                "acting_weights": self.acting.get_state(),
                "episodes": self._snapshot_episode_tracking(),
            },
        }

    def set_state(self, state: State) -> None:
        self._context.components.set_state(state["components"])
        self._context.controllers.set_state(state["controllers"])
        for name, optimizer in self.optimizers().items():
            optimizer.set_state(state["optimizers"][name])
        custom = state["workflow_custom"]
        carry = custom["carry"]
        self._carry = None if carry is None else {key: v.to(self._context.device) for key, v in carry.items()}
        self._acting = custom["acting"]
        self.acting.set_state(custom.get("acting_weights", {}))  # there are none where current ones acted
        self._restore_episode_tracking(custom["episodes"])

    def _reset_episode_tracking(self, num_envs: int) -> None:
        self._episodes = EpisodeTracker(num_envs)

    def _update_episode_stats(self, seen: Observation) -> list[Episode]:
        """Add one observation of every environment; the episodes that end with it come back."""
        return list(self._episodes.add(seen).values())

    def _snapshot_episode_tracking(self) -> State:
        return self._episodes.get_state()

    def _restore_episode_tracking(self, state: State) -> None:
        self._episodes.set_state(state)


def weighted_sum(losses: Mapping[str, Tensor], weights: Mapping[str, float]) -> Tensor:
    """The mean of each loss times the weight of the same name, summed; names must match exactly."""
    if losses.keys() != weights.keys():
        different = ", ".join(sorted(losses.keys() ^ weights.keys()))
        raise ReverieError(
            f"workflow.loss_weights must name exactly the losses of this workflow; differing: {different}."
        )
    return torch.stack([losses[name].mean() * weight for name, weight in weights.items()]).sum()
