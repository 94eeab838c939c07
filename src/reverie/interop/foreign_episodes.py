"""Episodes of other codes on their way into a dataset, before anybody has looked whether they are good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from reverie.datasets.findings import Finding
from reverie.types import Spaces


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignEpisode:
    """T steps: T + 1 observations, the T actions chosen at all but the last, the T rewards that these brought."""

    where: str
    """The file, and the episode in it."""
    obs: Mapping[str, np.ndarray]
    action: np.ndarray
    reward: np.ndarray
    is_terminal: bool
    """Whether the last observation is the end of the task, and not that of a time limit or of the recording."""
    step_offset: int = 0
    """What the source's own count of steps is ahead of the observations here."""


@dataclass(frozen=True, slots=True)
class Note:
    """What was done with good data that a person should know; equal notes are shown once, with their number."""

    text: str


Found: TypeAlias = ForeignEpisode | Finding | Note


class Source(Protocol):
    spaces: Spaces | None
    """Those that the source declares, and to which its arrays are fitted; None where they must be guessed."""
    task: str | None
    origin: str
    """Where the episodes come from, in words."""

    def episodes(self) -> Iterator[Found]:
        """Every episode in a fixed order; what cannot be one is a finding. May be called again."""
        ...


def length_findings(episode: ForeignEpisode) -> Iterator[Finding]:
    """Arrays that do not have the length which the rewards ask for."""
    steps = len(episode.reward) if episode.reward.ndim else 0
    if steps == 0:
        yield Finding(episode.where, "fewer than two rows, so there is no step in it")
        return
    expected = {key: (value, steps + 1) for key, value in episode.obs.items()} | {"action": (episode.action, steps)}
    for key, (value, length) in expected.items():
        found = len(value) if value.ndim else 0
        if found != length:
            yield Finding(episode.where, f"{found} entries instead of {length}", key, min(found, length))


def closed(
    obs: Mapping[str, np.ndarray],
    following: Mapping[str, np.ndarray] | None,
    action: np.ndarray,
    reward: np.ndarray,
    *,
    is_terminal: bool,
    where: str,
) -> Iterator[Found]:
    """An episode whose source has T observations for T steps: the one after the last step is elsewhere or lost.

    ``following`` are the observations after each step, where the source has them.
    """
    if following is not None:
        last = {key: following[key][-1:] for key in obs if key in following}
        missing = [key for key in obs if key not in following]
        if missing:
            yield Finding(where, "missing among the observations that follow the steps", missing[0])
            return
    elif is_terminal:
        yield Note("the file has no observation after the last step, so the one before it stands in for it")
        last = {key: value[-1:] for key, value in obs.items()}
    else:
        yield Note("the file has no observation after the last step, so that step is left out (its end was a limit)")
        last = {key: value[:0] for key, value in obs.items()}
        action, reward = action[:-1], reward[:-1]
    whole = {key: np.concatenate([value, last[key]]) for key, value in obs.items()}
    yield ForeignEpisode(where=where, obs=whole, action=action, reward=reward, is_terminal=is_terminal)
