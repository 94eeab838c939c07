"""How long the experiments of bsuite last: the published sweep, written down so that nobody waits for its import."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_BY_INDEX = (*range(1, 11), 12, 14, 17, 20, 25, *range(30, 105, 10))
"""Memory lengths and chain lengths by the index of their setting."""

_EPISODES: Mapping[str, int] = {"cartpole": 1000, "mountain_car": 1000, "discounting_chain": 1000}
"""By how the experiment's name begins; all others last 10,000 episodes."""

_STEPS: Mapping[str, int | Sequence[int]] = {
    "bandit": 1,
    "cartpole": 1001,  # at most: the pole may fall before
    "catch": 9,
    "deep_sea": range(10, 51, 2),
    "discounting_chain": 100,
    "memory_len": [length + 1 for length in _BY_INDEX],
    "memory_size": 3,
    "mnist": 1,
    "mountain_car": 1000,  # at most: the car may arrive before
    "umbrella_distract": 20,
    "umbrella_length": _BY_INDEX,
}
"""Actions in one episode, by how the experiment's name begins: one number, or one for each setting."""


def experiment_episodes(task: str) -> int:
    """How many episodes the experiment of ``task`` lasts."""
    return next((count for name, count in _EPISODES.items() if _is_kind(task, name)), 10000)


def episode_rows(task: str) -> int:
    """Rows of the longest episode of ``task``: one per action, and the last observation."""
    steps = next(steps for name, steps in _STEPS.items() if _is_kind(task, name))
    return 1 + (steps if isinstance(steps, int) else steps[int(task.rpartition("_")[2])])


def _is_kind(task: str, name: str) -> bool:
    return task.startswith(f"bsuite_{name}_")
