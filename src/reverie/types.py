"""The words every layer speaks: observations, rows, batches, phases, policies, and state that can be saved.

Time alignment, fixed here for the whole project: reward and flags *arrive with* the observation, the action is
chosen *at* it. A time limit sets ``is_last`` and leaves ``is_terminal`` unset. Rewards are stored unclipped.

Axis letters in names: B batch, T time, N environments (streams), H imagined steps, A actions, D features.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np

if TYPE_CHECKING:  # simulators run in processes of their own, which start a hundred times faster without torch
    import torch
    from torch import Tensor

State = dict[str, Any]
"""What a checkpoint can hold: nested dicts and lists of tensors, numpy arrays, numbers, strings, booleans and None."""

Metrics: TypeAlias = "dict[str, Tensor]"
"""Zero-dimensional tensors by name. Only the logger turns them into numbers."""

Carry: TypeAlias = "dict[str, Tensor]"
"""What a policy remembers from one step to the next, with a leading axis N."""

Mode = Literal["train", "eval"]
PhaseType = Literal["online", "offline", "eval_only"]


class ReverieError(Exception):
    """Something the user can mend. The command line prints the message alone and exits with this code."""

    exit_code = 2


class RunStoppedError(ReverieError):
    """A run that cannot go on, through no mistake in what the user typed. The message says where to look."""

    exit_code = 1


def require(name: str, value: float, *, at_least: float, at_most: float = float("inf")) -> None:
    """Refuse a number of the configuration that is out of range (NaN is)."""
    if not at_least <= value <= at_most:
        limits = f"at least {at_least}" if at_most == float("inf") else f"from {at_least} to {at_most}"
        raise ReverieError(f"`{name}` must be {limits}, got {value}.")


def require_choice(name: str, value: str, choices: Iterable[str]) -> None:
    """Refuse a word of the configuration that is not among its ``choices``."""
    known = list(choices)
    if value not in known:
        raise ReverieError(f"`{name}` must be one of {', '.join(known)}, got {value}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class Space:
    """Shape and kind of one observation key or of the action."""

    shape: tuple[int, ...]
    dtype: Literal["uint8", "float32", "int64"]
    classes: int | tuple[int, ...] | None = None
    """Discrete values only: how many there are, or how many for each element of a vector of shape (n,)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(self.shape))  # YAML has lists only
        if self.classes is not None and not isinstance(self.classes, int):
            object.__setattr__(self, "classes", tuple(self.classes))

    @property
    def is_discrete(self) -> bool:
        return self.classes is not None

    @property
    def is_image(self) -> bool:
        return self.dtype == "uint8" and len(self.shape) == 3

    @property
    def dim(self) -> int:
        """Length of the flat vector that represents one value: classes for one-hots, else the number of elements."""
        if self.classes is None:
            return int(np.prod(self.shape, dtype=np.int64))
        return self.classes if isinstance(self.classes, int) else sum(self.classes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Spaces:
    """What an environment (or a dataset) looks like to a model."""

    obs: Mapping[str, Space]
    action: Space


@dataclass(kw_only=True, slots=True)
class Timestep:
    """What one environment yields at one moment."""

    obs: dict[str, np.ndarray]
    reward: float
    is_first: bool
    is_last: bool
    is_terminal: bool
    scores: Mapping[str, float] = field(default_factory=dict)
    """Given with the last observation only: what the episode is also measured by (its achievements, its success)."""


@dataclass(kw_only=True, slots=True)
class Observation:
    """What N environments yield at one moment: every tensor has a leading axis N."""

    obs: dict[str, Tensor]
    reward: Tensor
    is_first: Tensor
    is_last: Tensor
    is_terminal: Tensor
    scores: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    """By environment, where an episode ends here: what it is also measured by."""
    lost: frozenset[int] = frozenset()
    """Environments whose episode ends here because their simulator was lost, and not by the task or its time limit."""

    def to(self, device: torch.device) -> Observation:
        return Observation(
            obs={key: value.to(device) for key, value in self.obs.items()},
            reward=self.reward.to(device),
            is_first=self.is_first.to(device),
            is_last=self.is_last.to(device),
            is_terminal=self.is_terminal.to(device),
            scores=self.scores,
            lost=self.lost,
        )


@dataclass(kw_only=True, slots=True)
class Row(Observation):
    """One agent step of N environments, complete: what was seen, what was chosen, what the policy wants kept."""

    action: Tensor
    stored: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def complete(cls, seen: Observation, action: Tensor, stored: dict[str, Tensor]) -> Row:
        return cls(
            obs=seen.obs,
            reward=seen.reward,
            is_first=seen.is_first,
            is_last=seen.is_last,
            is_terminal=seen.is_terminal,
            action=action,
            stored=stored,
        )


@dataclass(kw_only=True, slots=True)
class RowIndex:
    """Where the rows of a batch come from: ``stream`` [B], and ``row`` [B, T], counted since the buffer was empty."""

    stream: Tensor
    row: Tensor
    weight: Tensor | None = None
    """[B]: less for sequences that are drawn more often; None where the buffer does not make up for that."""


@dataclass(kw_only=True, slots=True)
class Batch(Row):
    """Consecutive rows shaped [B, T, ...]; the first ``context`` of the T rows only supply a starting latent."""

    index: RowIndex
    weight: Tensor | None = None
    """That of the ``index``, where the batch is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Episode:
    """A finished episode of the agent."""

    score: float
    """Undiscounted sum of unclipped rewards."""
    length: int
    """Agent steps from the first to the last observation."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """What the suite also measures an episode by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """What a hook may know about the phase that calls it. ``progress`` runs from 0 to 1 and is updated in place."""

    name: str
    type: PhaseType
    progress: Tensor
    controller: str | None = None


@runtime_checkable
class Stateful(Protocol):
    """Whoever remembers, can save. ``set_state`` writes in place: a captured graph keeps the old addresses."""

    def get_state(self) -> State: ...

    def set_state(self, state: State) -> None: ...


class Policy(Protocol):
    """Chooses actions. Pure in its parameters: what it remembers between steps is the carry."""

    def initial(self, num_envs: int) -> Carry: ...

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        """The next carry, one action per environment, and what the buffer should keep beside the row."""
        ...
