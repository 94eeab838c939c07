"""The loop that a newcomer writes by hand gives the same bits as the full stack."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from killer import Killer

from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager

RUN = (
    "experiment=dreamer_cartpole",
    "size=debug",
    "environment.num_envs=4",
    "workflow.horizon=3",
    "training.total_timesteps=320",
    "training.train_ratio=2.6",  # no whole number of updates per step: the ratio must be kept over the whole run
    "training.batch_size=4",
    "training.batch_length=8",
)
DIGESTS = """
import hashlib, json, runpy, sys
sys.argv = sys.argv[1:]
module = runpy.run_path(sys.argv[0])
workflow, metrics = module["trained"](sys.argv[1:])
state = workflow.get_state()
from reverie.orchestration.state_tree import flattened
_, arrays = flattened({part: state[part] for part in ("components", "controllers", "optimizers")})
digest = lambda one: hashlib.sha256(one.contiguous().numpy().tobytes()).hexdigest()
print(json.dumps({name: digest(value) for name, value in arrays.items()}))
"""


@pytest.fixture(scope="module")
def environment(repo_root: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(repo_root / "src"), "OMP_NUM_THREADS": "1"}


def test_the_plain_loop_gives_the_bits_of_the_full_stack(
    killer: Killer, repo_root: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    ended = killer.run("train", *RUN, f"logdir={run}", "logging.has_tensorboard=false", "evaluation.every_steps=null")
    assert ended.code == 0, ended.output
    plain = [sys.executable, "-c", DIGESTS, str(repo_root / "examples" / "plain_loop.py"), *RUN]
    done = subprocess.run(plain, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = CheckpointManager(run, config=CheckpointConfig(), say=print).load()
    assert loaded is not None
    assert loaded.state["phase_state"]["totals"]["updates"] == 320 * 2.6 // (4 * 8)
    assert json.loads(done.stdout) == digests(loaded.state)


def digests(state: dict[str, object]) -> dict[str, str]:
    import hashlib

    from reverie.orchestration.state_tree import flattened

    _, arrays = flattened({part: state[part] for part in ("components", "controllers", "optimizers")})
    return {name: hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest() for name, value in arrays.items()}


def test_the_example_runs_as_its_head_says(repo_root: Path, environment: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(repo_root / "examples" / "plain_loop.py"), "workflow.horizon=3"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "loss/reward" in done.stdout
    assert list(tmp_path.iterdir()) == []
