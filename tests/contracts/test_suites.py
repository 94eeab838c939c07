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
FAST, SLOW = 700, 200
"""Steps of a simulator, and of one that makes fewer than a hundred in a second."""


@dataclass(frozen=True)
class Case:
    """A task with one file of the group `environment`, and what is expected of it."""

    task: str
    environment: str
    steps: int = FAST
    resume: str = "exact"
    overrides: tuple[str, ...] = ()
    is_seeded: bool = True
    """Whether another seed shows something else."""
    num_envs: int = NUM_ENVS

    def __str__(self) -> str:
        return f"{self.environment}-{self.task}"


def limited(**options: object) -> tuple[str, ...]:
    """Overrides of a simulator that let episodes end within the steps of a case."""
    return tuple(f"environment.simulator.{name}={value}" for name, value in options.items())


CASES = [
    Case("gym_CartPole-v1", "gym"),
    Case("gym_CartPole-v1", "gym_cartpole"),
    Case("gym_Pendulum-v1", "gym"),
    Case("atari_pong", "atari", overrides=limited(max_frames=400)),
    Case("atari_breakout", "atari100k", overrides=limited(max_frames=400)),
    Case("atari_freeway", "atari_simple", overrides=limited(max_frames=400)),
    Case("atari_pong", "atari_fast", resume="restart", overrides=limited(max_frames=400)),
    Case("atari_breakout", "atari100k_fast", resume="restart", overrides=limited(max_frames=400)),
    Case("dmc_walker_walk", "dmc", overrides=limited(action_repeat=2)),
    Case("dmc_cartpole_swingup", "dmc_vision", steps=SLOW, overrides=limited(action_repeat=8, shadows="false")),
    Case("crafter_reward", "crafter", overrides=limited(episode_steps=450)),
    Case("crafter_noreward", "crafter", overrides=limited(episode_steps=450)),
    Case("memorymaze_9x9", "memorymaze", steps=SLOW // 2, overrides=limited(episode_steps=70), num_envs=1),
    Case("minigrid_DoorKey-8x8-v0", "minigrid"),
    Case("carracing_continuous", "carracing", steps=SLOW, overrides=limited(episode_frames=60)),
    Case("carracing_continuous", "carracing_fast", resume="restart", overrides=limited(episode_frames=60)),
    Case("pusht_state", "pusht", overrides=limited(episode_steps=60)),
    Case("pusht_pixels", "pusht", overrides=limited(episode_steps=60)),
    Case("bsuite_catch_0", "bsuite"),
    Case("procgen_coinrun", "procgen", steps=1000, resume="restart"),  # its own time limit
    Case("metaworld_reach-v3", "metaworld", overrides=limited(action_repeat=1)),
    Case("multitask_small", "multitask"),
    *(Case(f"builtin_{name}", "builtin") for name in ("discrete", "continuous", "image", "memory")),
    Case("builtin_explore", "builtin", is_seeded=False),  # all its episodes are alike
]
ELSEWHERE = {"minecraft": "test_minecraft.py", "procgen_isolated": "test_isolated.py"}
"""Simulators in an interpreter of their own, and the file that asks the same of them."""


def configured(case: Case) -> DictConfig:
    return composed(case.task, ["experiment=random_cartpole", f"environment={case.environment}", *case.overrides])


def made(case: Case) -> VectorEnvironment:
    config = configured(case)
    config.environment.in_workers = True
    return environments(config, num_envs=case.num_envs, seed=3, allow=None)


class RandomActions:
    """The same actions for everyone who asks with the same seed."""

    def __init__(self, env: VectorEnvironment) -> None:
        self._space: Space = env.spaces.action
        self._num_envs = env.num_envs
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
    """Images and discrete values have the range of their space. Floats have no declared range: they must be finite."""
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
    """Digests of every observation, checked on the way, and the state that was saved before step ``save_at``.

    In each environment at least one episode ends and another begins: else the flags would not have been looked at.
    """
    actions = RandomActions(env)
    seen = env.observe()
    check_flags(None, seen)
    digests, state = [digest(seen)], {}
    has_begun_again = torch.zeros(env.num_envs, dtype=torch.bool)
    for step in range(steps):
        if step == save_at:
            state = env.get_state()
        before, seen = seen, env.step(actions.next())
        check_values(seen, env)
        check_flags(before, seen)
        has_begun_again |= seen.is_first
        digests.append(digest(seen))
    assert has_begun_again.all()
    return digests, state


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_suite_keeps_its_promises(case: Case) -> None:
    env = made(case)
    try:
        save_at = case.steps * 9 // 10
        digests, state = played(env, case.steps, save_at)
        assert len(set(digests)) > 10, "an environment that shows the same all the time teaches nothing"
    finally:
        env.close()
    back = made(case)
    try:
        back.set_state(state)
        check_back(back, case, digests, save_at)
        count = case.steps // 20
        # In other processes, and after another seed, the same seed and actions show the same, to the last bit.
        assert (shown(back, seed=4, count=count) != digests[:count]) == case.is_seeded
        assert shown(back, seed=3, count=count) == digests[:count]
    finally:
        back.close()


def shown(env: VectorEnvironment, *, seed: int, count: int) -> list[str]:
    """The digests of the first observations of a seed."""
    actions = RandomActions(env)
    return [digest(env.reset(seed))] + [digest(env.step(actions.next())) for _ in range(count - 1)]


def check_back(env: VectorEnvironment, case: Case, digests: list[str], save_at: int) -> None:
    if case.resume == "restart":
        assert env.inexact is not None
        seen = env.observe()
        assert (seen.is_last | seen.is_first).all()
        return
    assert env.inexact is None
    actions = RandomActions(env)
    for _ in range(save_at):
        actions.next()
    found = [digest(env.observe())] + [digest(env.step(actions.next())) for _ in range(len(digests) - save_at - 1)]
    assert found == digests[save_at:]


def test_every_suite_and_every_environment_file_is_asked() -> None:
    assert {case.environment for case in CASES} | ELSEWHERE.keys() | {"none"} == set(options("environment"))
    assert {suite_of(case.task) for case in CASES} | {"minecraft"} == set(suite_names())
    for file in ELSEWHERE.values():
        assert (Path(__file__).parents[1] / "suites" / file).is_file()


def one_of_each_suite() -> list[Case]:
    """Those with processes of their own."""
    separate = [case for case in CASES if case.resume == "exact"]
    return list({suite_of(case.task): case for case in reversed(separate)}.values())


OPENS_EVERYTHING = """
import sys
import torch
torch.set_num_threads(1)
import test_suites
from dataclasses import replace
envs = [test_suites.made(replace(case, num_envs=1)) for case in test_suites.one_of_each_suite()]
for env in envs:
    env.observe()
print("open", flush=True)
sys.stdin.read()
"""


def descendants(pid: int) -> list[int]:
    """Every process below this one, in groups of their own or not."""
    below: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text(encoding="utf-8").split()):
            below += [child, *descendants(child)]
    return below


def is_running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] != "Z"  # a zombie waits for whoever adopted it


def test_nothing_is_left_when_the_parent_is_killed() -> None:
    """No process is left; the shared memory has no name, so that it goes with the last process that holds it."""
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", OPENS_EVERYTHING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert parent.stdout is not None
    try:
        assert parent.stdout.readline() == "open\n"
        below = descendants(parent.pid)
        assert len(below) >= len(one_of_each_suite()) > 10
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 30
    while any(map(is_running, below)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [pid for pid in below if is_running(pid)]
