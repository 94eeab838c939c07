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
        # Phases refer to these: what is wrong is said by the name under which it was given.
        require("training.total_timesteps", self.total_timesteps, at_least=0)  # none, where a dataset is learned from
        for name, least in (("batch_size", 1), ("batch_length", 1), ("total_updates", 1), ("prefill_steps", 0)):
            value: int | None = getattr(self, name)
            if value is not None:
                require(f"training.{name}", value, at_least=least)
        if not self.train_ratio > 0:
            raise ReverieError(f"`training.train_ratio` must be above 0, got {self.train_ratio}.")


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentConfig:
    """The section without its ``simulator``, which is the ``_target_`` node of one environment."""

    num_envs: int = 1
    in_workers: bool = True
    """Whether simulators live in worker processes, which can die and be started again without ending the run."""
    num_workers: int | None = None
    """Worker processes that share the simulators; null makes as many as there are processors."""
    frame_stack: int = 1
    """Last pictures in one observation, behind each other along the channels."""

    def __post_init__(self) -> None:
        require("environment.frame_stack", self.frame_stack, at_least=1)


_DREAMER = ("deter", "hidden", "stoch", "classes", "blocks", "depth", "units", "bins")
_TDMPC = ("latent_dim", "encoder_units", "encoder_layers", "mlp_units", "members")


@dataclass(frozen=True, kw_only=True, slots=True)
class SizeConfig:
    """Read by the other sections through ``${size.*}``; checked here so that a wrong key or type is found.

    A size is one of Dreamer, of TD-MPC, or of both.
    """

    deter: int | None = None
    hidden: int | None = None
    stoch: int | None = None
    classes: int | None = None
    blocks: int | None = None
    depth: int | None = None
    units: int | None = None
    bins: int | None = None
    layers: int | None = None
    """Of the heads, where a size has a say in it (the 2023 form of DreamerV3); null leaves it to the components."""
    vector_units: int | None = None
    """Of the layers that read and reconstruct vectors, in the same case; null makes them like the others."""
    latent_dim: int | None = None
    encoder_units: int | None = None
    encoder_layers: int | None = None
    mlp_units: int | None = None
    members: int | None = None
    """Critics side by side."""

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        for name, value in given.items():
            if value < 1:
                raise ReverieError(f"`size.{name}` must be at least 1, got {value}.")
        families = [family for family in (_DREAMER, _TDMPC) if given.keys() & set(family)]
        for family in families or [_DREAMER]:
            for name in family:
                if name not in given:
                    raise ReverieError(f"`size.{name}` is missing: a size that has one of {', '.join(family)} has all.")
        if _DREAMER in families:
            self._check_dreamer(**{name: given[name] for name in ("deter", "blocks", "classes", "bins")})

    def _check_dreamer(self, *, deter: int, blocks: int, classes: int, bins: int) -> None:
        if deter % blocks:
            raise ReverieError(f"`size.deter` ({deter}) must be a multiple of `size.blocks` ({blocks}).")
        if classes > 256:
            raise ReverieError(f"`size.classes` must be at most 256, got {classes}: replay keeps a byte per latent.")
        if bins < 3:
            raise ReverieError(f"`size.bins` must be at least 3, got {bins}.")
