"""Simulators killed at random moments of a real run: it finishes, counts every death, and mixes no episodes."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from same_run import last_buffers

from reverie.buffers.host_rows import HostRows

NUM_ENVS = 3

# Each observation says which episode it belongs to, whose simulator's that is, and how far it has come.
WITNESS = """
import os
import time
from pathlib import Path
import gymnasium
import numpy as np


class Witness(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.name, self.steps = (self.np_random.random(), os.getpid()), 0
        return self.view(), {}

    def step(self, action):
        time.sleep(0.004)
        self.steps += 1
        if self.steps == 12:
            Path(__file__).with_name(f"finished-{os.getpid()}").touch()
        return self.view(), 1.0, self.steps == 12, False, {}

    def view(self):
        return np.array([*self.name, self.steps], np.float32)


gymnasium.register("Witness-v0", Witness)
"""


@pytest.mark.parametrize("kills", [6, pytest.param(50, marks=pytest.mark.long)])
def test_killed_simulators_cost_their_episodes_and_nothing_else(tmp_path: Path, kills: int) -> None:
    (tmp_path / "witness_world.py").write_text(WITNESS)
    run = tmp_path / "run"
    steps = 1200 + 300 * kills
    parent = subprocess.Popen(
        [
            *(sys.executable, "-m", "reverie", "train", "experiment=random_cartpole"),
            *("task=gym:witness_world:Witness-v0", f"logdir={run}", f"environment.num_envs={NUM_ENVS}"),
            *(
                "environment.in_workers=true",
                f"environment.num_workers={NUM_ENVS}",
                f"training.total_timesteps={steps}",
                "evaluation.episodes=2",
            ),
            *("evaluation.envs=2", "checkpoint.every_steps=150", "logging.every_steps=150"),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    killed = _kill_simulators(parent, tmp_path, kills)
    output, _ = parent.communicate(timeout=300)
    assert parent.returncode == 0, output
    assert killed == kills, f"the run ended after {killed} kills\n{output}"
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["collect/simulator_deaths"] for line in lines if "collect/simulator_deaths" in line][-1] == kills
    assert output.count("died: its process was ended by SIGKILL") == kills
    _check_rows(run, deaths=kills)


def _kill_simulators(parent: subprocess.Popen[str], folder: Path, kills: int) -> int:
    """SIGKILL to one simulator after another, at random moments after its first whole episode; how many were met."""
    rng = random.Random(kills)
    killed: set[int] = set()
    while len(killed) < kills and parent.poll() is None:
        finished = {int(file.name.partition("-")[2]) for file in folder.glob("finished-*")}
        if candidates := sorted(finished - killed):
            pid = rng.choice(candidates)
            os.kill(pid, signal.SIGKILL)
            killed.add(pid)
        time.sleep(rng.uniform(0.05, 0.3))
    return len(killed)


def _check_rows(run: Path, *, deaths: int) -> None:
    _, buffers = last_buffers(run)
    replay = buffers["replay"]
    assert isinstance(replay._rows, HostRows)
    rows = {name: value.numpy() for name, value in replay._rows.held(replay.stream_length).items()}
    count = buffers["replay"]._count
    truncated, replaced = 0, 0
    for stream in range(NUM_ENVS):
        view = rows["obs/vector"][stream, :count]
        is_first, is_last = rows["is_first"][stream, :count], rows["is_last"][stream, :count]
        is_terminal = rows["is_terminal"][stream, :count]
        assert is_first[0]
        assert np.array_equal(is_first[1:], is_last[:-1]), "an episode begins where another one ended, and only there"
        assert (view[is_first, 2] == 0).all()
        within = ~is_first[1:]
        assert (view[1:, :2] == view[:-1, :2])[within].all(), "an episode keeps its name"
        cut = is_last & ~is_terminal
        grown = (view[1:, 2] - view[:-1, 2])[within]
        assert np.array_equal(grown, np.where(cut[1:][within], 0, 1)), "it grows by one, but where a death ended it"
        assert (view[is_terminal, 2] == 12).all()
        is_replaced = view[1:, 1] != view[:-1, 1]
        assert is_replaced[cut[:-1]].all(), "what follows a cut episode comes from another simulator"
        truncated, replaced = truncated + int(cut.sum()), replaced + int(is_replaced.sum())
    # A simulator that dies between two episodes cuts none. At the end of the run nothing may come from its successor.
    assert truncated <= replaced
    assert deaths - NUM_ENVS <= replaced <= deaths
