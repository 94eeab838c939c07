"""A task tried as a run would use it: one environment behind the real vector interface, under random actions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from reverie.components.controllers.random_policy import random_action
from reverie.environments.vector import VectorEnvironment
from reverie.types import Observation, Spaces

_MAX_SECONDS = 20.0
_COMPARED_STEPS = 60


@dataclass(kw_only=True, slots=True)
class Trial:
    """What came to light."""

    spaces: Spaces
    frames_per_step: int
    steps: int = 0
    steps_per_second: float = 0.0
    ranges: dict[str, tuple[float, float]] = field(default_factory=dict)
    """The smallest and largest value seen, by key; the reward's is under "reward"."""
    terminal_lengths: list[int] = field(default_factory=list)
    """Lengths of the episodes that ended in a terminal state."""
    limit_lengths: list[int] = field(default_factory=list)
    """Lengths of the episodes that a time limit ended."""
    seeding: str = ""
    resume: str = ""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def tried(first: VectorEnvironment, make: Callable[[], VectorEnvironment], *, steps: int) -> Trial:
    """Watches ``first``, which holds one environment, and compares it with another one that ``make`` gives."""
    trial = Trial(spaces=first.spaces, frames_per_step=first.frames_per_step)
    _watch(trial, first, steps)
    trial.problems += first.notices()
    second = make()
    try:
        count = min(_COMPARED_STEPS, max(1, trial.steps // 2))
        _compare_seeds(trial, first, second, _actions(trial.spaces, count))
        _compare_resumed(trial, first, second, _actions(trial.spaces, count))
    finally:
        second.close()
    return trial


def _actions(spaces: Spaces, count: int) -> list[Tensor]:
    rng = torch.Generator().manual_seed(1)
    return [random_action(spaces.action, 1, rng) for _ in range(count)]


def _watch(trial: Trial, envs: VectorEnvironment, steps: int) -> None:
    start = time.perf_counter()
    found: dict[str, None] = {}
    seen, length = envs.observe(), 0
    for action in _actions(trial.spaces, steps):
        if time.perf_counter() - start > _MAX_SECONDS:
            break
        _look(trial, seen, found)
        was_last = bool(seen.is_last)
        seen = envs.step(action)
        trial.steps += 1
        length = 0 if was_last else length + 1
        if bool(seen.is_last):
            (trial.terminal_lengths if bool(seen.is_terminal) else trial.limit_lengths).append(length)
    _look(trial, seen, found)
    trial.steps_per_second = trial.steps / (time.perf_counter() - start)
    trial.problems += found


def _look(trial: Trial, seen: Observation, found: dict[str, None]) -> None:
    """Widen the ranges, and find what no learner can use."""
    for key, value in {**seen.obs, "reward": seen.reward}.items():
        name = "the reward" if key == "reward" and key not in seen.obs else f"the observation '{key}'"
        low, high = float(value.min()), float(value.max())
        if not (abs(low) < float("inf") and abs(high) < float("inf")):  # NaN fails this too
            found[f"{name} holds NaN or infinity: find the division or the unstable step that makes it."] = None
            continue
        before = trial.ranges.get(key, (low, high))
        trial.ranges[key] = (min(low, before[0]), max(high, before[1]))
    for key, space in trial.spaces.obs.items():
        classes = torch.tensor(space.classes) if space.classes is not None else None
        if classes is not None and not ((seen.obs[key] >= 0) & (seen.obs[key] < classes)).all():
            found[f"the observation '{key}' has classes outside its space: count them from 0."] = None
    if bool(seen.is_terminal) and not bool(seen.is_last):
        found["an observation is terminal but not the last of its episode: set both flags."] = None
    if bool(seen.is_first) and float(seen.reward) != 0.0:
        found["the first observation of an episode comes with a reward: nothing was done yet, so give 0."] = None


def _compare_seeds(
    trial: Trial, first: VectorEnvironment, second: VectorEnvironment, actions: Sequence[Tensor]
) -> None:
    once, again, other = _played(first, 0, actions), _played(second, 0, actions), _played(second, 1, actions)
    difference = _difference(once, again)
    if difference:
        trial.seeding = f"not repeatable ({difference})"
        trial.problems.append(
            f"the same seed and actions give another episode ({difference}): reset(seed) must decide everything, so "
            "draw from the generator it seeds, and from no global one."
        )
        return
    trial.seeding = "the same seed and actions repeat an episode bit for bit, in another object too"
    if not _difference(once, other):
        trial.notes.append("two seeds gave the same episode: right for a task without chance, else reset ignores it.")


def _compare_resumed(
    trial: Trial, first: VectorEnvironment, second: VectorEnvironment, actions: Sequence[Tensor]
) -> None:
    """Save the first environment inside an episode, restore the second from it, and let both go on."""
    seen = first.reset(2)
    for action in actions:
        seen = first.step(action)
    for action in actions:
        if not bool(seen.is_last | seen.is_first):
            break
        seen = first.step(action)
    state = first.get_state()
    second.reset(2)  # a run's environments have the same seed when it is resumed
    second.set_state(state)
    trial.resume = _resume_words(state)
    if second.inexact is not None:
        (trial.problems if "did not repeat" in second.inexact else trial.notes).append(second.inexact)
        return
    going_on = [[envs.observe(), *(envs.step(action) for action in actions)] for envs in (first, second)]
    difference = _difference(going_on[0], going_on[1])
    if difference:
        trial.problems.append(
            f"after a resume the episode goes on differently ({difference}): let get_state and set_state hold all that "
            "the simulator remembers, or set `environment.simulator.resume=restart` where it can be set."
        )


def _played(envs: VectorEnvironment, seed: int, actions: Sequence[Tensor]) -> list[Observation]:
    return [envs.reset(seed), *(envs.step(action) for action in actions)]


def _difference(one: Sequence[Observation], other: Sequence[Observation]) -> str:
    """Where two walks part, in words; empty where they do not."""
    for index, (left, right) in enumerate(zip(one, other, strict=True)):
        pairs = {f"observation '{key}'": (value, right.obs[key]) for key, value in left.obs.items()}
        pairs |= {name: (getattr(left, name), getattr(right, name)) for name in ("reward", "is_last", "is_terminal")}
        for name, (a, b) in pairs.items():
            if a.numpy().tobytes() != b.numpy().tobytes():
                return f"{name} differs after {index} steps"
    return ""


def _resume_words(state: dict[str, dict[str, dict[str, object]]]) -> str:
    saved = state.get("envs", {}).get("0", {})
    if "simulator" in saved:
        return "by state: the simulator saves itself"
    return "by replay of the open episode" if "actions" in saved else "by restart: the open episode ends as truncated"
