"""Suite "bsuite": the 468 small experiments of Osband et al. 2020, "Behaviour suite for reinforcement learning".

``bsuite_catch_0`` is the bsuite id catch/0: the first setting of the experiment `catch`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from reverie.environments.actions import class_index
from reverie.environments.base import Environment, Resume, TaskInfo, simulator_package
from reverie.environments.bsuite_lengths import episode_rows, experiment_episodes
from reverie.environments.task_lines import described, require_task, unavailable
from reverie.types import ReverieError, Space, Spaces, Timestep

_NUM_SETTINGS = {
    **dict.fromkeys(("bandit", "bandit_noise", "bandit_scale"), 20),
    **dict.fromkeys(("cartpole", "cartpole_noise", "cartpole_scale", "cartpole_swingup"), 20),
    **dict.fromkeys(("catch", "catch_noise", "catch_scale"), 20),
    **dict.fromkeys(("deep_sea", "deep_sea_stochastic"), 21),
    **{"discounting_chain": 20, "memory_len": 23, "memory_size": 17},
    **dict.fromkeys(("mnist", "mnist_noise", "mnist_scale"), 20),
    **dict.fromkeys(("mountain_car", "mountain_car_noise", "mountain_car_scale"), 20),
    **dict.fromkeys(("umbrella_distract", "umbrella_length"), 23),
}
"""The published sweep, written down because importing bsuite takes seconds, and a list of tasks must not."""

_MNIST_FOLDER = Path("/tmp/mnist")
_MNIST_FILES = [
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
]


class BsuiteEnvironment(Environment):
    """One setting of one experiment; the observation is flattened to a vector.

    The seed of an episode sets every generator that the experiment draws from while it plays. What the sweep itself
    fixes (which arm of a bandit pays, what the buttons of Deep Sea do) stays as it is. With the last observation come
    bsuite's own measures of the episode (such as its regret), and the number of episodes of the experiment.
    """

    resume: Resume = "replay"
    frames_per_step = 1

    def __init__(self, *, task: str) -> None:
        require_task(task, task_names())
        self.task = task
        self._env = _made(task)
        self._layers = _layers(self._env)
        shape = self._env.observation_spec().shape
        vector = Space(shape=(int(np.prod(shape)),), dtype="float32")
        action = Space(shape=(), dtype="int64", classes=int(self._env.action_spec().num_values))
        self.spaces = Spaces(obs={"vector": vector}, action=action)

    def reset(self, seed: int) -> Timestep:
        for depth, layer in enumerate(self._layers):
            if "_rng" in vars(layer):
                layer._rng.seed(_layer_seed(seed, depth))
        for name in self._env.bsuite_info():
            setattr(self._layers[0], f"_{name}", 0)  # a total over all episodes becomes that of one
        obs = self._obs(self._env.reset().observation)
        return Timestep(obs=obs, reward=0.0, is_first=True, is_last=False, is_terminal=False)

    def step(self, action: np.ndarray) -> Timestep:
        native = self._env.step(class_index(action, self.spaces.action.dim))
        is_last = bool(native.last())
        return Timestep(
            obs=self._obs(native.observation),
            reward=float(native.reward),
            is_first=False,
            is_last=is_last,
            is_terminal=is_last and native.discount == 0.0,
            scores=self._scores() if is_last else {},
        )

    def close(self) -> None:
        """bsuite holds nothing but memory."""

    def _obs(self, native: np.ndarray) -> dict[str, np.ndarray]:
        return {"vector": np.array(native, np.float32).reshape(-1)}

    def _scores(self) -> dict[str, float]:
        info = self._env.bsuite_info()
        own = {name.removeprefix("total_"): float(info[name]) for name in info if name != "best_episode"}
        return {**own, "experiment_episodes": float(self._env.bsuite_num_episodes)}


def task_names() -> list[str]:
    return [f"bsuite_{name}_{index}" for name, num in _NUM_SETTINGS.items() for index in range(num)]


def example_task() -> str:
    return "bsuite_catch_0"


def suite_steps(task: str) -> int:
    """Agent steps that the episodes of this experiment take at most."""
    require_task(task, task_names())
    return experiment_episodes(task) * episode_rows(task)


def task_info(task: str) -> TaskInfo:
    try:
        if task.startswith("bsuite_mnist") and not _has_mnist():
            raise _missing_mnist(task)  # a list of tasks downloads nothing
        environment = BsuiteEnvironment(task=task)
    except ReverieError as error:
        return unavailable(task, error)
    return described(environment, episode_steps=None)


def _made(task: str) -> Any:
    bsuite = simulator_package("bsuite", task=task, extra="bsuite")
    sweep = simulator_package("bsuite.sweep", task=task, extra="bsuite")
    experiment, _, index = task.removeprefix("bsuite_").rpartition("_")
    try:
        return bsuite.load(experiment, sweep.SETTINGS[f"{experiment}/{index}"])
    except OSError as error:
        if "mnist" not in task:
            raise
        raise _missing_mnist(task) from error


def _layers(env: Any) -> list[Any]:
    """The experiment's own environment, then the wrapper around it where there is one."""
    inner = vars(env).get("_env")
    return [env] if inner is None else [*_layers(inner), env]


def _layer_seed(seed: int, depth: int) -> int:
    """A generator of its own for each layer: noise on the reward must not follow what the environment draws."""
    if depth == 0:
        return seed
    return int(np.random.SeedSequence(entropy=seed, spawn_key=(depth,)).generate_state(1, np.uint32)[0])


def _has_mnist() -> bool:
    return all((_MNIST_FOLDER / name).is_file() for name in _MNIST_FILES)


def _missing_mnist(task: str) -> ReverieError:
    return ReverieError(
        f"{task} needs the MNIST files, which bsuite downloads to {_MNIST_FOLDER} when it can: "
        f"put {', '.join(_MNIST_FILES)} there."
    )
