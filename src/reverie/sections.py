"""The sections of a configuration that build.py reads itself, as dataclasses: a wrong key or type is found at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from reverie.types import ReverieError, require


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentConfig:
    name: str
    seed: int = 0
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ReverieError(f"`experiment.seed` must be 0 or more, got {self.seed}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig:
    total_timesteps: int
    """Agent steps. Phases refer to this and to the next four through ``${training.*}``."""
    train_ratio: float
    ratio_from: str
    batch_size: int
    batch_length: int
    phases: list[Any]
    sampler: Any = None
    """A name, or names with fractions; checked where the phases are parsed."""
    crosses_episodes: bool = True
    total_updates: int | None = None
    """Updates, where the phases learn from a dataset and take no steps."""
    lengths: Mapping[str, int] | None = None
    """Durations by name, where the phases have several that an experiment chooses."""
    collect_with: str | None = None
    """The controller of a phase that only collects, where an experiment chooses it."""
    prefill_steps: int | None = None
    """Agent steps with random actions before learning begins, where the phases have such a beginning."""
    resume_path: str | None = None
    """A run folder, or a checkpoint in one, whose whole state this run begins with."""
    max_skipped_updates: int = 5
    """The run stops when this many updates in a row were skipped because a loss or gradient was not finite."""

    def __post_init__(self) -> None:
        require("training.max_skipped_updates", self.max_skipped_updates, at_least=1)


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentConfig:
    """The section without its ``simulator``, which is the ``_target_`` node of one environment."""

    num_envs: int = 1
    in_workers: bool = True
    """Whether simulators live in worker processes, which can die and be started again without ending the run."""
    num_workers: int | None = None
    """Worker processes that share the simulators; null makes as many as there are processors."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeConfig:
    """Read by the other sections through ``${size.*}``; checked here so that a wrong key or type is found."""

    deter: int
    hidden: int
    stoch: int
    classes: int
    blocks: int
    depth: int
    units: int
    bins: int
    layers: int | None = None
    """Of the heads, where a size has a say in it (the 2023 form of DreamerV3); null leaves it to the components."""
    vector_units: int | None = None
    """Of the layers that read and reconstruct vectors, in the same case; null makes them like the others."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and value < 1:
                raise ReverieError(f"`size.{name}` must be at least 1, got {value}.")
        if self.deter % self.blocks:
            raise ReverieError(f"`size.deter` ({self.deter}) must be a multiple of `size.blocks` ({self.blocks}).")
        if self.classes > 256:
            raise ReverieError(
                f"`size.classes` must be at most 256, got {self.classes}: replay keeps a byte per latent."
            )
        if self.bins < 3:
            raise ReverieError(f"`size.bins` must be at least 3, got {self.bins}.")
