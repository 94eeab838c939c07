"""Short runs on the built-in tasks, by the command line inside this process, and the score they end with."""

from __future__ import annotations

import json
from pathlib import Path

from reverie.cli import main

EPISODES = 100
"""Of the last evaluation: enough for a mean that does not hang on luck."""

_QUICK = (
    *("evaluation.every_steps=null", f"evaluation.episodes={EPISODES}", "evaluation.envs=20"),
    "evaluation.open_loop.pictures_every=null",
    *("logging.has_tensorboard=false", "checkpoint.every_steps=1000000"),
)
"""Nothing on the way but learning: one evaluation, and one checkpoint, at the end."""


def learned_return(folder: Path, *overrides: str) -> float:
    """Train as `reverie train OVERRIDES` does, in ``folder``, and give the mean return of the last evaluation."""
    assert main(["train", *_QUICK, *overrides, f"logdir={folder}"]) == 0
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["eval/return_mean"] for line in lines if "eval/return_mean" in line][-1]


def random_return(folder: Path, *overrides: str) -> float:
    """The mean return of uniform random actions on the task that ``overrides`` name."""
    return learned_return(folder, "experiment=random_cartpole", *overrides, "training.total_timesteps=1")
