"""Did a change make anything slower on a processor?

    python benchmarks/cpu.py --before PATH_OF_ANOTHER_CHECKOUT [--rounds 5]

Both checkouts run with this interpreter and take turns in short rounds, first one and then the other first, so that
whatever else the machine does hits both alike. ``ratio`` is the shortest time before over the shortest time now, so
that more than 1 is faster; ``median``, ``lowest`` and ``highest`` are the ratios of single rounds, which tell how much
others used the machine. Only ratios mean anything on a shared machine. Each round is a process of its own that is asked
through the command line alone, which both have; start-up does not count. Writes benchmarks/results/cpu.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUIET = ["logging.has_tensorboard=false", "checkpoint.every_steps=1000000"]
QUIET += ["evaluation={every_steps: null, episodes: 1, envs: 1, open_loop: {sequences: 0}}"]
DEBUG = ["size=debug", "runtime=cpu", "training.batch_size=1", "training.batch_length=8", "workflow.horizon=2"]
DEBUG += ["buffer.replay.capacity=4000"]
MANY = ["environment.num_envs=8", "environment.in_workers=true", "environment.num_workers=1"]
MANY += ["training.train_ratio=1"]  # one update for each step of all eight
ONE = ["environment.num_envs=1", "environment.in_workers=false", "training.train_ratio=2"]
UPDATES = {
    "update, debug, pictures": ["--size", "debug", "--calls", "1"],
    "update, tiny, vectors": ["--size", "tiny", "--observations", "vector", "--calls", "2"],
}
"""Arguments of `reverie bench`."""
RUNS = {
    "collecting at random, CartPole": (["experiment=random_cartpole"], (5_000, 30_000)),
    "whole loop, CartPole": (["experiment=dreamer_cartpole", "size=debug"], (400, 2400)),
    "whole loop, Pong": (["experiment=dreamer_atari100k", *DEBUG, *ONE], (100, 500)),
    "whole loop, eight Pong in a worker": (["experiment=dreamer_atari100k", *DEBUG, *MANY], (400, 1600)),
    "whole loop, eight Crafter in a worker": (["experiment=dreamer_crafter", *DEBUG, *MANY], (400, 1600)),
}
"""Overrides of `reverie train`, and between which agent steps the time is taken."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=[*UPDATES, *RUNS], help="some of what is measured")
    given = parser.parse_args()
    checkouts = {"before": given.before.resolve(), "now": HERE.parent.resolve()}
    about = {
        "commits": {which: _commit(path) for which, path in checkouts.items()},
        "hardware": {"machine": platform.machine(), "processors": os.cpu_count()},
        "python": platform.python_version(),
        "rounds": given.rounds,
    }
    found: dict[str, Any] = {}
    RESULTS.mkdir(exist_ok=True)
    for name in given.only or [*UPDATES, *RUNS]:
        found[name] = one = _summary([_round(name, checkouts, number) for number in range(given.rounds)])
        print(f"{name}: before / now {one['ratio']} (rounds {one['lowest']} to {one['highest']})", flush=True)
        (RESULTS / "cpu.json").write_text(json.dumps({**about, "measured": found}, indent=1) + "\n")


def _round(name: str, checkouts: dict[str, Path], number: int) -> dict[str, float]:
    """Milliseconds per update or per agent step of both."""
    order = list(checkouts)[:: 1 if number % 2 else -1]
    measure = _update if name in UPDATES else _run
    return {which: measure(name, checkouts[which]) for which in order}


def _summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    ratios = sorted(one["before"] / one["now"] for one in rounds)
    best = {which: min(one[which] for one in rounds) for which in rounds[0]}
    spread = {"median": statistics.median(ratios), "lowest": ratios[0], "highest": ratios[-1]}
    numbers = {"ratio": best["before"] / best["now"], **spread, "before_ms": best["before"], "now_ms": best["now"]}
    return {name: round(number, 3) for name, number in numbers.items()}


def _update(name: str, checkout: Path) -> float:
    answer = json.loads(_reverie(checkout, "bench", "--json", *UPDATES[name]))
    return answer["results"][0]["ms_per_update"]


def _run(name: str, checkout: Path) -> float:
    overrides, (first, last) = RUNS[name]
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"training.total_timesteps={last}", f"logging.every_steps={first}", f"logdir={folder}/run"]
        _reverie(checkout, "train", *overrides, *QUIET, *settings)
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    seconds = {line["agent_steps"]: line["wall_seconds"] for line in reversed(lines)}
    return 1000 * (seconds[last] - seconds[first]) / (last - first)


def _reverie(checkout: Path, *arguments: str) -> str:
    variables = {**os.environ, "PYTHONPATH": str(checkout / "src"), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "reverie", *arguments]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{checkout}: `{' '.join(command)}` ended with code {done.returncode}:\n{done.stderr}")
    return done.stdout


def _commit(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "describe", "--always", "--dirty", "--abbrev=10"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    main()
