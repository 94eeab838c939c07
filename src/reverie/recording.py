"""Plays a task and writes what happened as a dataset: with random actions, or with the agent of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from omegaconf import DictConfig

from reverie.build import assemble_workflow, environments
from reverie.components.controllers.random_policy import RandomPolicy
from reverie.configuration import Allow, section
from reverie.datasets.episode_rows import episode_rows
from reverie.datasets.index import DatasetIndex
from reverie.datasets.writer import DatasetWriter, refuse_existing
from reverie.environments.vector import VectorEnvironment
from reverie.offline_build import different_spaces
from reverie.runtime.device import RuntimeConfig, chosen_device, prepare_torch
from reverie.runtime.rng import RandomStreams, derived_seed
from reverie.saved_agent import load_weights, trained_spaces
from reverie.sections import EnvironmentConfig
from reverie.types import Observation, Policy, ReverieError, Spaces

PolicyMaker = Callable[[VectorEnvironment, RandomStreams], Policy]


@dataclass(frozen=True, kw_only=True, slots=True)
class Amount:
    """How much is recorded: whole episodes, or at least so many rows with the last episodes cut off."""

    episodes: int | None = None
    steps: int | None = None


def record_random(config: DictConfig, dest: Path, *, amount: Amount, seed: int) -> DatasetIndex:
    """Uniform random actions in the task of ``config``."""

    def policy(env: VectorEnvironment, rng: RandomStreams) -> Policy:
        stream = rng.stream("act")
        return RandomPolicy(space=env.spaces.action, rngs={"train": stream, "eval": stream})

    device = torch.device("cpu")
    return _recorded(config, dest, policy, amount=amount, seed=seed, device=device, allow=None, actor="random actions")


def record_agent(
    config: DictConfig, run: Path, dest: Path, *, amount: Amount, seed: int, allow: Sequence[str]
) -> DatasetIndex:
    """The agent of ``run``, as it acts in evaluations. ``config`` is the run's, with the task to play."""
    refuse_existing(dest)
    device = chosen_device("auto")  # the run may have been trained on a machine with other devices
    prepare_torch(section(RuntimeConfig, config.runtime, path="runtime"), device)
    learned = trained_spaces(config)

    def policy(env: VectorEnvironment, rng: RandomStreams) -> Policy:
        if (difference := different_spaces(learned, env.spaces)) is not None:
            raise ReverieError(f"the agent of {run} cannot play {env.task}: {difference}.")
        workflow = assemble_workflow(config, spaces=env.spaces, train_env=None, rng=rng, device=device, allow=allow)
        load_weights(workflow, run, None)
        return workflow.policy(None)

    actor = f"the agent of {run.resolve().name}"
    return _recorded(config, dest, policy, amount=amount, seed=seed, device=device, allow=allow, actor=actor)


def _recorded(
    config: DictConfig,
    dest: Path,
    make_policy: PolicyMaker,
    *,
    amount: Amount,
    seed: int,
    device: torch.device,
    allow: Allow,
    actor: str,
) -> DatasetIndex:
    refuse_existing(dest)
    rng = RandomStreams(seed, device=device)
    env_seed = derived_seed(seed, "record") % 2**31
    with closing(environments(config, num_envs=_num_envs(config, amount), seed=env_seed, allow=allow)) as env:
        policy = make_policy(env, rng)
        origin = f"{actor}, seed {seed}"
        with DatasetWriter(dest, spaces=env.spaces, task=env.task, origin=origin) as writer:
            for rows in _episodes(env, policy, amount, device):
                writer.add(rows)
        return writer.index


def _num_envs(config: DictConfig, amount: Amount) -> int:
    given = {key: value for key, value in config.environment.items() if key != "simulator"}
    count = section(EnvironmentConfig, given, path="environment").num_envs
    return min(count, amount.episodes or amount.steps or count)


@dataclass(slots=True)
class _OpenEpisode:
    """What one environment has shown since its episode began."""

    spaces: Spaces
    obs: dict[str, list[np.ndarray]] = field(default_factory=dict)
    action: list[np.ndarray] = field(default_factory=list)
    reward: list[float] = field(default_factory=list)
    is_terminal: bool = False

    @property
    def has_steps(self) -> bool:
        return len(self.reward) > 1

    def see(self, seen: Observation, index: int) -> None:
        if seen.is_first[index]:
            self.obs, self.action, self.reward = {key: [] for key in seen.obs}, [], []
        for key, value in seen.obs.items():
            self.obs[key].append(value[index].numpy())
        self.reward.append(float(seen.reward[index]))
        self.is_terminal = bool(seen.is_terminal[index])

    def rows(self) -> dict[str, np.ndarray]:
        obs = {key: np.stack(values).astype(self.spaces.obs[key].dtype) for key, values in self.obs.items()}
        action = np.stack(self.action[: len(self.reward) - 1]).astype(self.spaces.action.dtype)
        return episode_rows(obs, action, np.array(self.reward[1:]), is_terminal=self.is_terminal)


def _episodes(
    env: VectorEnvironment, policy: Policy, amount: Amount, device: torch.device
) -> Iterator[dict[str, np.ndarray]]:
    """Episodes in the order in which they end; every environment plays the same number, give or take one."""
    num_envs = env.num_envs
    quota = [(amount.episodes or 0) // num_envs + (i < (amount.episodes or 0) % num_envs) for i in range(num_envs)]
    open_episodes = [_OpenEpisode(env.spaces) for _ in range(num_envs)]
    seen, carry, rows = env.observe(), policy.initial(num_envs), 0
    while True:
        rows += num_envs
        is_over = amount.steps is not None and rows >= amount.steps
        for index, episode in enumerate(open_episodes):
            episode.see(seen, index)
            ends = bool(seen.is_last[index]) or is_over
            if ends and episode.has_steps and (amount.steps is not None or quota[index] > 0):
                quota[index] -= 1
                yield episode.rows()
        if is_over or (amount.steps is None and max(quota) <= 0):
            return
        carry, action, _ = policy.act(carry, seen.to(device), mode="eval")
        action = action.cpu()
        for index, episode in enumerate(open_episodes):
            episode.action.append(action[index].numpy())
        seen = env.step(action)
