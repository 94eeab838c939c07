"""Simulators in processes of their own: the same rows as in this process, deaths survived, nothing left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.environments.episodes import EpisodeTracker
from reverie.environments.parallel import separate
from reverie.environments.parallel.maker import Maker
from reverie.environments.parallel.separate import SeparateEnvironments
from reverie.runtime.processors import processor_shares
from reverie.types import Observation, ReverieError

WORLD = '''
import os, signal, subprocess, sys, time
from pathlib import Path
import numpy as np
from reverie.environments.base import Environment
from reverie.types import ReverieError, Space, Spaces, Timestep


class World(Environment):
    """Noise that a seed fixes. Action 1 raises, 2 kills the process, 3 refuses, 4 hangs; ``mode`` breaks more."""

    task = "own_world"
    frames_per_step = 2
    spaces = Spaces(
        obs={"image": Space(shape=(4, 4, 3), dtype="uint8"), "vector": Space(shape=(2,), dtype="float32")},
        action=Space(shape=(), dtype="int64", classes=5),
    )

    def __init__(self, *, resume="replay", mode="fine", length=7):
        self.resume, self._mode, self._length = resume, mode, length
        assert "torch" not in sys.modules, "a worker must not pay for torch"
        assert os.environ["PYTHONHASHSEED"] == "0"
        if mode == "stillborn":
            raise RuntimeError("no engine")
        if mode == "has a helper":
            helper = subprocess.Popen(["sleep", "600"])
            Path(__file__).with_name(f"helper-{helper.pid}").touch()
        if mode == "refuses":
            raise ReverieError("own_world wants another option: set mode=fine.")

    def reset(self, seed):
        if self._mode == "dies at reset":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._mode == "chatty":
            print("x" * 600_000)
        self._rng, self._steps = np.random.default_rng(seed), 0
        return self._timestep()

    def step(self, action):
        if action == 1:
            print("the floor gives way", file=sys.stderr, flush=True)
            raise ZeroDivisionError("through the floor")
        if action == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        if action == 3:
            raise ReverieError("own_world cannot do 3: choose another action.")
        if action == 4:
            time.sleep(600)
        if self._mode == "slow":
            time.sleep(0.004)  # longer than anybody stays awake for it
        self._steps += 1
        return self._timestep()

    def close(self):
        pass

    def get_state(self):
        if self._mode == "dies when saved" and self._steps == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        bits = self._rng.bit_generator.state["state"]
        return {"steps": self._steps, "bits": {key: str(value) for key, value in bits.items()}}

    def replay(self, seed, actions):
        if self._mode == "dies when restored":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().replay(seed, actions)

    def set_state(self, state):
        if self._mode == "dies when restored":
            os.kill(os.getpid(), signal.SIGKILL)
        self._rng, self._steps = np.random.default_rng(0), int(state["steps"])
        bits = {key: int(value) for key, value in state["bits"].items()}
        self._rng.bit_generator.state = {**self._rng.bit_generator.state, "state": bits}

    def _timestep(self):
        is_last = self._steps == self._length
        image = self._rng.integers(0, 256, (4, 4, 3)).astype(np.uint8)
        vector = self._rng.normal(size=2).astype(np.float32)
        return Timestep(
            obs={"image": image, "vector": vector},
            reward=0.0 if self._steps == 0 else float(self._rng.normal()),
            is_first=self._steps == 0,
            is_last=is_last,
            is_terminal=False,
            scores={"luck": float(vector[0])} if is_last else {},
        )

    @staticmethod
    def summary(mean_scores):
        return {"doubled": 2 * mean_scores["luck"]}
'''


@pytest.fixture(autouse=True)
def _own_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "own_world.py").write_text(WORLD)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("own_world", None)


def worlds(num_envs: int = 2, seed: int = 5, num_workers: int | None = None, **arguments: Any) -> SeparateEnvironments:
    maker = Maker(module="own_world", name="World", arguments=arguments)
    return SeparateEnvironments(
        maker, num_envs=num_envs, seed=seed, in_workers=True, num_workers=num_workers or num_envs
    )


def action(*values: int) -> Tensor:
    return torch.tensor(values)


def words(seen: Observation) -> str:
    parts = [seen.reward.tolist(), seen.is_first.tolist(), seen.is_last.tolist(), dict(seen.scores)]
    return repr([*parts, *({key: value.tolist()} for key, value in sorted(seen.obs.items()))])


def pids(envs: SeparateEnvironments) -> list[int]:
    return [seat.process.pid for seat in envs._seats]  # type: ignore[attr-defined]


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def all_leave(processes: list[int]) -> bool:
    """Whether they end within some seconds: a killed process needs a moment."""
    deadline = time.monotonic() + 20
    while any(is_alive(pid) for pid in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(is_alive(pid) for pid in processes)


def test_workers_give_the_rows_that_the_same_simulators_give_here(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    world = importlib.import_module("own_world").World
    monkeypatch.setattr(world, "__init__", lambda self: vars(self).update(resume="replay", _mode="fine", _length=7))
    here = SeparateEnvironments(world, num_envs=3, seed=5, in_workers=False)
    there = worlds(num_envs=3)
    try:
        assert there.spaces == here.spaces
        assert (there.task, there.frames_per_step, there.num_envs) == ("own_world", 2, 3)
        assert words(there.observe()) == words(here.observe())
        seen = [(there.step(action(0, 0, 0)), here.step(action(0, 0, 0))) for _ in range(20)]
        assert all(words(one) == words(other) for one, other in seen)
        assert any(one.scores for one, _ in seen)
    finally:
        there.close()


@pytest.mark.parametrize("resume", ["state", "replay"])
def test_an_open_episode_comes_back_bit_for_bit_in_new_processes(resume: str) -> None:
    first, second = worlds(resume=resume), worlds(resume=resume)
    try:
        first.observe()
        for _ in range(11):
            first.step(action(0, 0))
        second.set_state(first.get_state())
        assert second.inexact is None
        assert words(second.observe()) == words(first.observe())
        for _ in range(10):
            assert words(second.step(action(0, 0))) == words(first.step(action(0, 0)))
    finally:
        first.close()
        second.close()


def test_restart_ends_the_open_episode_as_truncated_and_says_so() -> None:
    first, second = worlds(resume="restart"), worlds(resume="restart")
    try:
        first.observe()
        shown = first.step(action(0, 0))
        second.set_state(first.get_state())
        assert second.inexact is not None
        back = second.observe()
        assert back.is_last.all()
        assert not back.is_terminal.any()
        assert torch.equal(back.obs["image"], shown.obs["image"])
        assert second.step(action(0, 0)).is_first.all()
    finally:
        first.close()
        second.close()


@pytest.mark.parametrize("fault", [1, 2])
def test_a_death_ends_one_episode_as_truncated_and_the_others_go_on(fault: int) -> None:
    envs, calm = worlds(num_envs=3), worlds(num_envs=3)
    try:
        envs.observe()
        calm.observe()
        before = envs.step(action(0, 0, 0))
        calm.step(action(0, 0, 0))
        after, as_usual = envs.step(action(0, fault, 0)), calm.step(action(0, 0, 0))
        assert after.is_last.tolist() == [False, True, False]
        assert not after.is_terminal.any()
        assert after.reward[1] == 0.0
        assert torch.equal(after.obs["image"][1], before.obs["image"][1])
        assert torch.equal(after.obs["image"][::2], as_usual.obs["image"][::2])
        (notice,) = envs.notices()
        assert "environment 1 (own_world) died" in notice
        assert ("ZeroDivisionError" if fault == 1 else "SIGKILL") in notice
        assert envs.notices() == []
        assert envs.deaths == 1
        assert envs.step(action(0, 0, 0)).is_first.tolist() == [False, True, False]
        assert not envs.step(action(0, 0, 0)).is_first.any()
    finally:
        envs.close()
        calm.close()


def test_simulators_that_share_a_process_die_together_and_are_counted_once() -> None:
    envs, calm = worlds(num_envs=5, num_workers=2), worlds(num_envs=5)
    try:
        assert len(set(pids(envs))) == 2
        assert words(envs.observe()) == words(calm.observe())
        for _ in range(9):
            assert words(envs.step(action(*[0] * 5))) == words(calm.step(action(*[0] * 5)))
        before, after = envs.observe(), envs.step(action(0, 0, 0, 2, 0))
        assert after.is_last.tolist() == [False, False, True, True, True]
        assert after.lost == {2, 3, 4}
        assert torch.equal(after.obs["image"][2:], before.obs["image"][2:])
        assert envs.deaths == 1
        (notice,) = envs.notices()
        assert "environment 3 (own_world) died" in notice  # the one that did it, not the first of its process
        assert envs.step(action(*[0] * 5)).is_first.tolist() == [False, False, True, True, True]
        os.kill(pids(envs)[0], signal.SIGKILL)
        assert envs.step(action(*[0] * 5)).is_last.tolist() == [True, True, False, False, False]
        assert envs.deaths == 2
    finally:
        envs.close()
        calm.close()


def test_deaths_of_a_shared_process_are_counted_for_the_simulator_that_failed() -> None:
    envs = worlds(num_envs=2, num_workers=1)
    try:
        envs.observe()
        for _ in range(2):
            assert envs.step(action(0, 1)).lost == {0, 1}
            assert envs.step(action(0, 0)).is_first.all()
        assert all("environment 1" in notice for notice in envs.notices())
        with pytest.raises(ReverieError, match=r"environment 1 .*3rd time"):
            envs.step(action(0, 1))
    finally:
        envs.close()


def test_workers_may_be_slower_than_anybody_stays_awake_for() -> None:
    slow, quick = worlds(num_envs=4, num_workers=2, mode="slow"), worlds(num_envs=4, num_workers=2)
    try:
        assert words(slow.observe()) == words(quick.observe())
        for _ in range(9):
            assert words(slow.step(action(*[0] * 4))) == words(quick.step(action(*[0] * 4)))
        time.sleep(0.01)  # a learner that takes its time
        assert words(slow.step(action(*[0] * 4))) == words(quick.step(action(*[0] * 4)))
    finally:
        slow.close()
        quick.close()


@pytest.mark.parametrize("culprit", [0, 1, 2])
def test_a_death_between_calm_steps_is_noticed_whichever_worker_it_is(culprit: int) -> None:
    """Where no episode ends, nobody asks the environments one by one."""
    envs = worlds(num_envs=3, num_workers=3, length=50)
    try:
        envs.observe()
        for _ in range(4):
            envs.step(action(0, 0, 0))
        os.kill(pids(envs)[culprit], signal.SIGKILL)
        assert envs.step(action(0, 0, 0)).lost == {culprit}
        assert envs.step(action(0, 0, 0)).is_first.tolist() == [index == culprit for index in range(3)]
        assert not envs.step(action(0, 0, 0)).is_first.any()
        assert envs.deaths == 1
    finally:
        envs.close()


def test_only_workers_with_a_processor_of_their_own_stay_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    share = sorted(os.sched_getaffinity(0))[:1]
    for shares, expected in (([share, share], [0.0, separate._AWAKE_SECONDS]), ([[], []], [0.0, 0.0])):
        monkeypatch.setattr(separate, "processor_shares", lambda _, shares=shares: shares)
        envs = worlds(num_envs=2, num_workers=2)
        try:
            assert [process._awake_seconds for process in envs._processes] == expected
            assert envs.observe().is_first.all()
        finally:
            envs.close()


def test_workers_share_out_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    envs = worlds(num_envs=2, num_workers=2)
    try:
        limits = [os.sched_getaffinity(pid) for pid in pids(envs)]
        usable = os.sched_getaffinity(0)
        if len(usable) == 1:
            assert limits == [usable, usable]
        else:
            assert limits[0] | limits[1] == usable
            assert not limits[0] & limits[1]
    finally:
        envs.close()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 8})
    assert processor_shares(2) == [[3, 8], [5]]
    assert processor_shares(4) == [[], [], [], []]


def test_the_third_death_without_a_finished_episode_stops_with_the_simulators_own_traceback() -> None:
    envs = worlds(num_envs=1)
    try:
        envs.observe()
        for _ in range(2):
            assert envs.step(action(1)).is_last.all()
            assert envs.step(action(0)).is_first.all()
        with pytest.raises(ReverieError, match=r"(?s)3rd time.*Traceback.*through the floor"):
            envs.step(action(1))
    finally:
        envs.close()


def test_a_finished_episode_between_deaths_starts_the_count_anew() -> None:
    envs = worlds(num_envs=1, length=2)
    try:
        envs.observe()
        for _ in range(4):
            envs.step(action(2))
            envs.step(action(0))
            envs.step(action(0))
            assert envs.step(action(0)).is_last.all()
            envs.step(action(0))
        assert envs.deaths == 4
        other = worlds(num_envs=1, length=2)
        other.set_state(envs.get_state())
        assert other.deaths == 4
        other.close()
    finally:
        envs.close()


def test_a_simulator_that_always_dies_at_reset_stops_the_run() -> None:
    envs = worlds(num_envs=1, mode="dies at reset")
    try:
        with pytest.raises(ReverieError, match="SIGKILL"):
            envs.observe()
    finally:
        envs.close()


def test_a_death_while_the_state_is_saved_is_a_truncated_episode_too() -> None:
    envs = worlds(num_envs=1, resume="state", mode="dies when saved")
    try:
        envs.observe()
        for _ in range(3):
            envs.step(action(0))
        state = envs.get_state()
        assert envs.deaths == 1
        assert envs.observe().is_last.all()
        assert state["envs"]["0"]["timestep"]["is_last"]
        assert envs.step(action(0)).is_first.all()
    finally:
        envs.close()


@pytest.mark.parametrize(("mode", "message"), [("stillborn", "no engine"), ("refuses", "set mode=fine")])
def test_a_simulator_that_cannot_be_made_is_one_error_and_leaves_no_process(mode: str, message: str) -> None:
    before = _children()
    with pytest.raises(ReverieError, match=message):
        worlds(mode=mode)
    assert _children() <= before


def test_a_refusal_is_passed_on_at_once() -> None:
    envs = worlds()
    try:
        envs.observe()
        with pytest.raises(ReverieError, match="cannot do 3"):
            envs.step(action(0, 3))
    finally:
        envs.close()


@pytest.mark.parametrize("resume", ["state", "replay"])
def test_a_death_while_an_episode_is_brought_back_cuts_it_and_is_counted(resume: str) -> None:
    first, second = worlds(resume=resume), worlds(resume=resume, mode="dies when restored")
    try:
        first.observe()
        first.step(action(0, 0))
        second.set_state(first.get_state())
        assert second.inexact is not None
        assert "died while it was brought back" in second.inexact
        assert second.deaths == 2
        assert len(second.notices()) == 2
        back = second.observe()
        assert back.is_last.all()
        assert back.lost == {0, 1}
        assert second.step(action(0, 0)).is_first.all()
    finally:
        first.close()
        second.close()


def test_an_episode_whose_simulator_was_lost_counts_for_no_score() -> None:
    envs, tracker = worlds(num_envs=2, length=3), EpisodeTracker(2)
    try:
        ended = tracker.add(envs.observe())
        for step in range(3):
            ended |= tracker.add(envs.step(action(0, 2 if step == 1 else 0)))
        assert set(ended) == {0}
        assert envs.deaths == 1
    finally:
        envs.close()


def test_a_refusal_leaves_no_answer_unread() -> None:
    envs, calm = worlds(), worlds()
    try:
        envs.observe()
        calm.observe()
        with pytest.raises(ReverieError, match="cannot do 3"):
            envs.step(action(3, 0))
        calm.step(action(0, 0))
        assert torch.equal(calm.observe().obs["image"][1], torch.from_numpy(envs._board.obs["image"][1].copy()))
        assert not envs._seats[1].process._line.has_message()  # type: ignore[attr-defined]
    finally:
        envs.close()
        calm.close()


@pytest.mark.parametrize("end", ["close", "death"])
def test_what_a_simulator_has_started_ends_with_it(end: str, tmp_path: Path) -> None:
    envs = worlds(num_envs=1, mode="has a helper")
    (helper,) = [int(file.name.partition("-")[2]) for file in tmp_path.glob("helper-*")]
    assert is_alive(helper)
    if end == "death":
        envs.observe()
        envs.step(action(2))
        assert all_leave([helper])
    envs.close()
    assert all_leave([int(file.name.partition("-")[2]) for file in tmp_path.glob("helper-*")])


def test_what_simulators_print_does_not_grow_without_end() -> None:
    envs = worlds(num_envs=1, length=1, mode="chatty")
    try:
        envs.observe()
        for _ in range(12):
            envs.step(action(0))
        assert 0 < os.fstat(envs._seats[0].process._log.fileno()).st_size < 2_000_000  # type: ignore[attr-defined]
    finally:
        envs.close()


def test_close_leaves_no_process_and_no_descriptor() -> None:
    gc.collect()  # what other tests left
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    envs = worlds(num_envs=4)
    workers = pids(envs)
    envs.observe()
    assert all(is_alive(pid) for pid in workers)
    envs.close()
    envs.close()
    assert not any(is_alive(pid) for pid in workers)
    del envs  # and with it the memory that it has mapped
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors


def test_workers_leave_when_their_parent_is_killed() -> None:
    """Also one that hangs in a step and never reads the socket."""
    program = (
        "import sys, test_workers, torch\n"
        "envs = test_workers.worlds(num_envs=2)\n"
        "envs.observe()\n"
        "print(*test_workers.pids(envs), flush=True)\n"
        "envs.step(torch.tensor([4, 0]))\n"
    )
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    assert all_leave(workers)


def _children() -> set[str]:
    found = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {pid for pid in found if is_alive(int(pid))}
