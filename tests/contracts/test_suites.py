"""What every suite promises, asked of each of them through the configuration that a user would choose."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from omegaconf import DictConfig
from torch import Tensor

from reverie.build import environments
from reverie.commands.catalogue import options
from reverie.commands.composition import composed
from reverie.environments.suites import suite_names, suite_of
from reverie.environments.vector import VectorEnvironment
from reverie.types import Observation, Space, State

NUM_ENVS = 2
FAST, SLOW = 1000, 200
"""Steps of a simulator, and of one that makes fewer than a hundred in a second."""


@dataclass(frozen=True)
class Case:
    """A task with one file of the group `environment`, and what is expected of it."""

    task: str
    environment: str
    steps: int = FAST
    resume: str = "exact"
    overrides: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.environment}-{self.task}"


CASES = [
    Case("gym_CartPole-v1", "gym"),
    Case("gym_Pendulum-v1", "gym"),
    Case("atari_pong", "atari"),
    Case("atari_breakout", "atari100k"),
    Case("atari_freeway", "atari_simple"),
    Case("atari_pong", "atari_fast", resume="restart"),
    Case("atari_breakout", "atari100k_fast", resume="restart"),
    Case("dmc_walker_walk", "dmc"),
    Case("dmc_cartpole_swingup", "dmc_vision", steps=SLOW),
    Case("crafter_reward", "crafter"),
    Case("crafter_noreward", "crafter", steps=SLOW),
    Case("memorymaze_9x9", "memorymaze", steps=SLOW),
    Case("minigrid_DoorKey-8x8-v0", "minigrid"),
    Case("carracing_continuous", "carracing", steps=SLOW),
    Case("carracing_continuous", "carracing_fast", steps=SLOW, resume="restart"),
    Case("pusht_state", "pusht"),
    Case("pusht_pixels", "pusht", steps=SLOW),
    Case("bsuite_catch_0", "bsuite"),
    Case("procgen_coinrun", "procgen", resume="restart"),
    Case("metaworld_reach-v3", "metaworld"),
    *(Case(f"builtin_{name}", "builtin") for name in ("discrete", "continuous", "image", "memory", "explore")),
]
ELSEWHERE = {"minecraft": "test_minecraft.py", "procgen_isolated": "test_isolated.py"}
"""Simulators in an interpreter of their own, and the file that asks the same of them."""


def configured(case: Case) -> DictConfig:
    return composed(case.task, ["experiment=random_cartpole", f"environment={case.environment}", *case.overrides])


def made(case: Case, *, num_envs: int = NUM_ENVS, seed: int = 3) -> VectorEnvironment:
    config = configured(case)
    config.environment.in_workers = True
    return environments(config, num_envs=num_envs, seed=seed, allow=None)


class RandomActions:
    """The same actions for everyone who asks with the same seed."""

    def __init__(self, space: Space, num_envs: int = NUM_ENVS) -> None:
        self._space = space
        self._num_envs = num_envs
        self._rng = np.random.default_rng(0)

    def next(self) -> Tensor:
        shape = (self._num_envs, *self._space.shape)
        if self._space.classes is None:
            return torch.from_numpy(self._rng.uniform(-1.2, 1.2, shape).astype(np.float32))
        return torch.from_numpy(self._rng.integers(0, np.array(self._space.classes), shape))


def digest(seen: Observation) -> str:
    parts = [seen.reward, seen.is_first, seen.is_last, seen.is_terminal, *(seen.obs[key] for key in sorted(seen.obs))]
    return hashlib.sha1(b"".join(part.numpy().tobytes() for part in parts)).hexdigest()


def check_values(seen: Observation, env: VectorEnvironment) -> None:
    assert seen.obs.keys() == env.spaces.obs.keys()
    for key, space in env.spaces.obs.items():
        value = seen.obs[key]
        assert tuple(value.shape) == (env.num_envs, *space.shape), key
        assert str(value.dtype).removeprefix("torch.") == space.dtype, key
        if space.dtype == "float32":
            assert torch.isfinite(value).all(), key
        if space.classes is not None:
            assert (value >= 0).all(), key
            assert (value < torch.tensor(space.classes)).all(), key
    assert torch.isfinite(seen.reward).all()
    assert seen.reward.dtype == torch.float32


def check_flags(before: Observation | None, seen: Observation) -> None:
    """A first observation follows a last one (or nothing) and pays nothing; only a last one may be terminal."""
    expected = torch.ones_like(seen.is_first) if before is None else before.is_last
    assert torch.equal(seen.is_first, expected)
    assert not (seen.is_first & seen.is_last).any()
    assert not (seen.is_terminal & ~seen.is_last).any()
    assert not seen.reward[seen.is_first].any()


def played(env: VectorEnvironment, steps: int, save_at: int) -> tuple[list[str], State]:
    """Digests of every observation, checked on the way, and the state that was saved before step ``save_at``."""
    actions = RandomActions(env.spaces.action)
    seen = env.observe()
    check_flags(None, seen)
    digests, state = [digest(seen)], {}
    for step in range(steps):
        if step == save_at:
            state = env.get_state()
        before, seen = seen, env.step(actions.next())
        check_values(seen, env)
        check_flags(before, seen)
        digests.append(digest(seen))
    return digests, state


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_suite_keeps_its_promises(case: Case) -> None:
    env = made(case)
    try:
        save_at = case.steps * 4 // 5
        digests, state = played(env, case.steps, save_at)
        assert len(set(digests)) > 10, "an environment that shows the same all the time teaches nothing"
    finally:
        env.close()
    again = made(case)
    try:
        check_again(again, digests[: case.steps // 5], is_exact=True)
    finally:
        again.close()
    back = made(case)
    try:
        back.set_state(state)
        check_back(back, case, digests, save_at)
    finally:
        back.close()


def check_again(env: VectorEnvironment, digests: list[str], *, is_exact: bool) -> None:
    """The same seed and actions in other processes show the same, to the last bit."""
    actions = RandomActions(env.spaces.action)
    found = [digest(env.observe())] + [digest(env.step(actions.next())) for _ in range(len(digests) - 1)]
    assert (found == digests) == is_exact


def check_back(env: VectorEnvironment, case: Case, digests: list[str], save_at: int) -> None:
    if case.resume == "restart":
        assert env.inexact is not None
        seen = env.observe()
        assert (seen.is_last | seen.is_first).all()
        return
    assert env.inexact is None
    actions = RandomActions(env.spaces.action)
    for _ in range(save_at):
        actions.next()
    found = [digest(env.observe())] + [digest(env.step(actions.next())) for _ in range(len(digests) - save_at - 1)]
    assert found == digests[save_at:]


def test_other_seeds_show_other_episodes() -> None:
    for case in CASES[:3]:
        one, other = made(case, num_envs=1, seed=1), made(case, num_envs=1, seed=2)
        try:
            actions = [RandomActions(one.spaces.action, 1) for _ in range(2)]
            shown = [
                [digest(env.step(draw.next())) for _ in range(50)]
                for env, draw in zip((one, other), actions, strict=True)
            ]
            assert shown[0] != shown[1]
        finally:
            one.close()
            other.close()


def test_every_suite_and_every_environment_file_is_asked() -> None:
    assert {case.environment for case in CASES} | ELSEWHERE.keys() == set(options("environment"))
    assert {suite_of(case.task) for case in CASES} | {"minecraft"} == set(suite_names())
    for file in ELSEWHERE.values():
        assert (Path(__file__).parents[1] / "suites" / file).is_file()


OPENS_EVERYTHING = """
import sys
import torch
torch.set_num_threads(1)
import test_suites
envs = [test_suites.made(case, num_envs=1) for case in test_suites.CASES if case.resume == "exact"]
for env in envs:
    env.observe()
print(*(seat._process.pid for env in envs for seat in env._seats), flush=True)
sys.stdin.read()
"""


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    shared = set(Path("/dev/shm").iterdir())
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", OPENS_EVERYTHING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    workers = [Path(f"/proc/{pid}") for pid in parent.stdout.readline().split()]
    assert len(workers) == sum(case.resume == "exact" for case in CASES)
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while any(worker.exists() for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [worker for worker in workers if worker.exists()]
    assert set(Path("/dev/shm").iterdir()) <= shared
