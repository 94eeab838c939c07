"""Suite "multitask": several tasks of other suites behind one observation and one action; each episode plays one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

import numpy as np

from reverie.environments.base import Environment, Resume, TaskInfo
from reverie.environments.suites import suite, suite_of
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, State, Timestep

_SETS: Mapping[str, tuple[str, ...]] = {
    "multitask_small": ("builtin_continuous", "gym_Pendulum-v1"),
    "multitask_walker": ("dmc_walker_stand", "dmc_walker_walk", "dmc_walker_run"),
    "multitask_dmc19": (
        "dmc_walker_stand",
        "dmc_walker_walk",
        "dmc_walker_run",
        "dmc_cheetah_run",
        "dmc_reacher_easy",
        "dmc_reacher_hard",
        "dmc_acrobot_swingup",
        "dmc_pendulum_swingup",
        "dmc_cartpole_balance",
        "dmc_cartpole_balance_sparse",
        "dmc_cartpole_swingup",
        "dmc_cartpole_swingup_sparse",
        "dmc_ball_in_cup_catch",
        "dmc_finger_spin",
        "dmc_finger_turn_easy",
        "dmc_finger_turn_hard",
        "dmc_fish_swim",
        "dmc_hopper_stand",
        "dmc_hopper_hop",
    ),
}
"""The last is what TD-MPC2's set of thirty tasks takes from the Control Suite itself; the others there are its own."""
_RESUMES: tuple[Resume, ...] = get_args(Resume)
"""From the best to the worst."""


class MultitaskEnvironment(Environment):
    """Which task an episode plays follows from its seed, each with the same chance.

    ``state`` holds the vectors of the task, end to end in sorted order and filled up with zeros to the longest;
    ``task`` is its number; ``action_mask`` is 1 for the parts of the action that it reads. All tasks have continuous
    actions, see no pictures and repeat actions as often. ``tasks`` replaces those of the set, ``options`` go to each
    simulator that knows them. An episode is also measured by the return under the name of its task.
    """

    needs_rendering: ClassVar[bool] = True  # of the Control Suite; the others ask for nothing

    def __init__(
        self, *, task: str, tasks: Sequence[str] | None = None, options: Mapping[str, Any] | None = None
    ) -> None:
        require_task(task, task_names())
        self.task = task
        self._names = tuple(_SETS[task] if tasks is None else tasks)
        _require_several(self._names)
        self._simulators: list[Environment] = []
        try:
            for simulator in _simulators(self._names, dict(options or {})):
                self._simulators.append(simulator)  # one by one: those that were made are closed if the next fails
                _require_fit(simulator)
            self.frames_per_step = _common_repeat(self._simulators)
            self.spaces = _spaces(self._simulators)
        except BaseException:
            self.close()
            raise
        resumes: list[Resume] = [one.resume for one in self._simulators]
        self.resume: Resume = max(resumes, key=_RESUMES.index)
        self._number = 0
        self._return = 0.0

    @property
    def episode_steps(self) -> int | None:
        """Of the longest task; None where one has no limit."""
        limits: list[int | None] = [getattr(one, "episode_steps", None) for one in self._simulators]
        known = [limit for limit in limits if limit is not None]
        return max(known) if len(known) == len(limits) else None

    def reset(self, seed: int) -> Timestep:
        self._number = int(np.random.default_rng(seed).integers(len(self._simulators)))
        self._return = 0.0
        return self._seen(self._playing.reset(seed))

    def step(self, action: np.ndarray) -> Timestep:
        return self._seen(self._playing.step(action[: self._playing.spaces.action.dim]))

    def close(self) -> None:
        while self._simulators:
            self._simulators.pop().close()

    def get_state(self) -> State:
        return {"number": self._number, "return": self._return, "playing": self._playing.get_state()}

    def set_state(self, state: State) -> None:
        self._number, self._return = int(state["number"]), float(state["return"])
        self._playing.set_state(state["playing"])

    @property
    def _playing(self) -> Environment:
        return self._simulators[self._number]

    def _seen(self, timestep: Timestep) -> Timestep:
        self._return += timestep.reward
        vectors = [np.atleast_1d(timestep.obs[key]).ravel() for key in sorted(timestep.obs)]
        obs = {
            "state": _filled(np.concatenate(vectors), self.spaces.obs["state"].dim),
            "task": np.array(self._number, np.int64),
            "action_mask": _filled(np.ones(self._playing.spaces.action.dim), self.spaces.action.dim),
        }
        own = {f"return/{self._names[self._number]}": self._return} if timestep.is_last else {}
        return replace(timestep, obs=obs, scores={**timestep.scores, **own})


def task_names() -> list[str]:
    return list(_SETS)


def task_info(task: str) -> TaskInfo:
    try:
        environment = MultitaskEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    info = described(environment, episode_steps=environment.episode_steps)
    environment.close()
    return info


def _require_several(names: tuple[str, ...]) -> None:
    if len(names) < 2 or len(set(names)) < len(names):
        raise ReverieError(f"`environment.simulator.tasks` must name at least two tasks, each once, got {list(names)}.")
    if nested := [name for name in names if name in _SETS]:
        raise ReverieError(f"`environment.simulator.tasks` may not name a set of tasks, got {nested[0]}.")


def _simulators(names: tuple[str, ...], options: dict[str, Any]) -> Iterator[Environment]:
    makers = {name: _maker(name) for name in names}
    accepted = {name: inspect.signature(maker).parameters.keys() - {"task"} for name, maker in makers.items()}
    known = sorted(set[str]().union(*accepted.values()))
    for key in options:
        if key not in known:
            raise ReverieError(
                f"`environment.simulator.options.{key}` is known to none of the tasks; they know {', '.join(known)}."
            )
    for name, maker in makers.items():
        yield maker(task=name, **{key: value for key, value in options.items() if key in accepted[name]})


def _maker(task: str) -> Callable[..., Environment]:
    """The simulator class of the suite that the task belongs to."""
    module = suite(suite_of(task))
    found = [one for one in vars(module).values() if inspect.isclass(one) and issubclass(one, Environment)]
    own = [one for one in found if one.__module__ == module.__name__]
    if len(own) != 1:
        raise ReverieError(f"`environment.simulator.tasks` may not name {task}: its suite plays many tasks at a time.")
    return own[0]


def _require_fit(simulator: Environment) -> None:
    action = simulator.spaces.action
    if action.is_discrete or len(action.shape) != 1:
        raise ReverieError(f"{simulator.task} cannot share an action: it must be a vector of continuous numbers.")
    for key, space in simulator.spaces.obs.items():
        if space.is_discrete or space.is_image:
            raise ReverieError(f"{simulator.task} cannot share an observation: '{key}' is not a vector of numbers.")


def _common_repeat(simulators: Sequence[Environment]) -> int:
    repeats = {one.task: one.frames_per_step for one in simulators}
    if len(set(repeats.values())) > 1:
        listed = ", ".join(f"{task} {count}" for task, count in repeats.items())
        raise ReverieError(f"the tasks must have the same frames per agent step, got {listed}.")
    return simulators[0].frames_per_step


def _spaces(simulators: Sequence[Environment]) -> Spaces:
    width = max(sum(space.dim for space in one.spaces.obs.values()) for one in simulators)
    action_dim = max(one.spaces.action.dim for one in simulators)
    return Spaces(
        obs={
            "state": Space(shape=(width,), dtype="float32"),
            "task": Space(shape=(), dtype="int64", classes=len(simulators)),
            "action_mask": Space(shape=(action_dim,), dtype="float32"),
        },
        action=Space(shape=(action_dim,), dtype="float32"),
    )


def _filled(values: np.ndarray, length: int) -> np.ndarray:
    """As float32, with zeros behind them."""
    filled = np.zeros(length, np.float32)
    filled[: len(values)] = values
    return filled
