"""Simulators work while their caller goes on; whoever needs what they show waits for them, and it is the same."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.environments.parallel.batch_simulator import BatchSimulator, BatchTimestep
from reverie.environments.parallel.batched import BatchedEnvironments
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.environments.vector import VectorEnvironment
from reverie.runtime.rng import RandomStreams
from reverie.types import Carry, Mode, Observation, Phase, Policy, ReverieError, Space, Spaces
from reverie.workflows.base import WorldModelWorkflow
from reverie.workflows.context import WorkflowContext, WorldModelComponents
from reverie.workflows.controllers import ControllerManager

NUM_ENVS = 2

# With action 1 a step ends when the file is there, with action 2 it dies then, with action 3 it refuses.
GATED = """
import os
import signal
import time
from pathlib import Path

import numpy as np
from reverie.environments.base import Environment
from reverie.types import ReverieError, Space, Spaces, Timestep


class Gated(Environment):
    task = "gated_world"
    frames_per_step = 1
    resume = "replay"
    spaces = Spaces(
        obs={"vector": Space(shape=(1,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=4)
    )

    def reset(self, seed):
        self._rng, self._steps = np.random.default_rng(seed), 0
        return self._timestep()

    def step(self, action):
        if action in (1, 2):
            for _ in range(3000):
                if Path(__file__).with_name("open").exists():
                    break
                time.sleep(0.01)
            else:
                raise TimeoutError("nobody opened the gate")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 3:
            raise ReverieError("gated_world cannot do 3: choose another action.")
        self._steps += 1
        return self._timestep()

    def close(self):
        Path(__file__).with_name(f"closed-{os.getpid()}").touch()

    def _timestep(self):
        vector = self._rng.normal(size=1).astype(np.float32)
        return Timestep(
            obs={"vector": vector},
            reward=float(self._steps),
            is_first=self._steps == 0,
            is_last=self._steps == 5,
            is_terminal=False,
        )
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    (tmp_path / "gated_world.py").write_text(GATED)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "open"
    sys.modules.pop("gated_world", None)


@pytest.fixture
def gated(gate: Path) -> Iterator[SeparateEnvironments]:
    del gate
    maker = Maker(module="gated_world", name="Gated", arguments={})
    envs = SeparateEnvironments(maker, num_envs=NUM_ENVS, seed=3, in_workers=True, num_workers=NUM_ENVS)
    yield envs
    envs.close()


def actions(*values: int) -> Tensor:
    return torch.tensor(values)


def test_a_step_begins_and_the_caller_goes_on(gate: Path, gated: SeparateEnvironments) -> None:
    gated.observe()
    chosen = actions(1, 1)
    gated.begin_step(chosen)  # would wait half a minute for the gate, and fail
    chosen.fill_(3)  # is the caller's again
    assert gated.notices() == []
    gate.touch()
    assert gated.observe().reward.tolist() == [1.0, 1.0]


def rows(envs: VectorEnvironment, step: Callable[[VectorEnvironment, Tensor], Observation]) -> list[Any]:
    seen = [envs.observe(), *(step(envs, actions(0, 0)) for _ in range(13))]
    return [(one.obs["vector"].tolist(), one.reward.tolist(), one.is_first.tolist()) for one in seen]


def begun_and_observed(envs: VectorEnvironment, action: Tensor) -> Observation:
    envs.begin_step(action)
    return envs.observe()


def saved_between(envs: VectorEnvironment, action: Tensor) -> Observation:
    """A checkpoint in the middle, from which everything goes on."""
    envs.begin_step(action)
    envs.set_state(envs.get_state())
    return envs.observe()


@pytest.mark.usefixtures("gate")
@pytest.mark.parametrize("step", [begun_and_observed, saved_between])
def test_the_rows_are_the_same(
    gated: SeparateEnvironments, step: Callable[[VectorEnvironment, Tensor], Observation]
) -> None:
    plain = rows(gated, lambda envs, action: envs.step(action))
    gated.reset(3)
    again = rows(gated, step)
    gated.reset(3)
    assert rows(gated, lambda envs, action: envs.step(action)) == again
    assert any(is_first[0] for _, _, is_first in plain[1:])


def test_a_reset_waits_and_leaves_no_trace(gate: Path, gated: SeparateEnvironments) -> None:
    expected = gated.reset(9).obs["vector"].tolist()
    gated.begin_step(actions(1, 0))
    gate.touch()
    assert gated.reset(9).obs["vector"].tolist() == expected


def test_a_death_at_work_is_an_episode_that_ends(gate: Path, gated: SeparateEnvironments) -> None:
    before = gated.observe()
    gated.begin_step(actions(0, 2))
    assert gated.deaths == 0
    gate.touch()
    seen = gated.observe()
    assert seen.is_last.tolist() == [False, True]
    assert seen.lost == {1}
    assert torch.equal(seen.obs["vector"][1], before.obs["vector"][1])
    assert gated.deaths == 1
    assert "SIGKILL" in gated.notices()[0]


def test_a_refusal_at_work_reaches_whoever_waits(gate: Path, gated: SeparateEnvironments) -> None:
    del gate
    gated.observe()
    gated.begin_step(actions(0, 3))
    with pytest.raises(ReverieError, match="gated_world cannot do 3"):
        gated.observe()


def test_close_lets_simulators_at_work_finish_and_close(gate: Path, gated: SeparateEnvironments) -> None:
    gated.observe()
    gated.begin_step(actions(1, 1))
    threading.Timer(0.1, gate.touch).start()
    gated.close()
    assert len(list(gate.parent.glob("closed-*"))) == NUM_ENVS


class Opener:
    """Always does what needs an open gate."""

    def initial(self, num_envs: int) -> Carry:
        return {}

    def act(self, carry: Carry, obs: Observation, *, mode: Mode) -> tuple[Carry, Tensor, dict[str, Tensor]]:
        return carry, torch.ones(len(obs.reward), dtype=torch.int64), {}


class Collecting(WorldModelWorkflow):
    def policy(self, controller: str | None) -> Policy:
        return Opener()


def test_collecting_goes_on_while_the_simulators_work(gate: Path, gated: SeparateEnvironments) -> None:
    workflow, cpu = Collecting(), torch.device("cpu")
    context = WorkflowContext(
        config={},
        device=cpu,
        spaces=gated.spaces,
        train_env=gated,
        components=WorldModelComponents({}),
        controllers=ControllerManager({}),
        optimizers={},
        rng=RandomStreams(0, device=cpu),
    )
    workflow.initialize(context)
    phase = Phase(name="learn", type="online", progress=torch.zeros(()))
    assert workflow.collect_step(0, phase=phase).trajectory.is_first.all()
    gate.touch()  # an update would come here
    assert workflow.collect_step(2, phase=phase).trajectory.reward.tolist() == [1.0, 1.0]


class Waiting(BatchSimulator):
    """Steps when it may, in the thread that made it."""

    task, num_envs, frames_per_step = "waiting_room", NUM_ENVS, 1
    spaces = Spaces(
        obs={"vector": Space(shape=(1,), dtype="float32")}, action=Space(shape=(), dtype="int64", classes=4)
    )

    def __init__(self, may_step: threading.Event) -> None:
        self._may_step, self._thread, self._count = may_step, threading.get_ident(), 0
        self.is_closed = False

    def reset(self) -> BatchTimestep:
        return self._timestep()

    def step(self, action: np.ndarray) -> BatchTimestep:
        assert self._may_step.wait(30), "nobody let it step"
        if action[0] == 3:
            raise ReverieError("waiting_room cannot do 3.")
        self._count += 1
        return self._timestep()

    def close(self) -> None:
        self.is_closed = True

    def _timestep(self) -> BatchTimestep:
        assert threading.get_ident() == self._thread, "some simulators belong to the thread that made them"
        none = np.zeros(NUM_ENVS, bool)
        return BatchTimestep(
            obs={"vector": np.full((NUM_ENVS, 1), self._count, np.float32)},
            reward=np.full(NUM_ENVS, self._count, np.float32),
            is_first=none | (self._count == 0),
            is_last=none,
            is_terminal=none,
        )


def waiting() -> tuple[BatchedEnvironments, threading.Event, list[Waiting]]:
    may_step, simulators = threading.Event(), []

    def make(seed: int) -> Waiting:
        del seed
        simulators.append(Waiting(may_step))
        return simulators[-1]

    return BatchedEnvironments(make, seed=0), may_step, simulators


def test_a_batch_steps_beside_its_caller() -> None:
    envs, may_step, simulators = waiting()
    envs.observe()
    envs.begin_step(actions(0, 0))
    may_step.set()
    assert envs.get_state()["timestep"]["reward"].tolist() == [1.0, 1.0]
    envs.begin_step(actions(0, 0))
    envs.begin_step(actions(0, 0))
    assert envs.observe().reward.tolist() == [3.0, 3.0]
    envs.begin_step(actions(0, 0))
    envs.close()
    envs.close()
    assert simulators[0].is_closed
    assert simulators[0]._count == 4


def test_what_a_batch_refuses_reaches_whoever_waits() -> None:
    envs, may_step, _ = waiting()
    may_step.set()
    envs.observe()
    envs.begin_step(actions(3, 0))
    with pytest.raises(ReverieError, match="waiting_room cannot do 3"):
        envs.observe()
    envs.close()
