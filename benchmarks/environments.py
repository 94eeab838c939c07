"""How much of a simulator's speed is left when it is stepped through Reverie, and what do workers add?

    python benchmarks/environments.py [--seconds 2] [--rounds 7] [--tries 7]

For each simulator: the bare library with the same preprocessing, written out below; one environment through Reverie
in the same process; one in a worker; eight in workers. They take turns in short rounds, so that whatever else the
machine does hits all of them alike; the ratios are medians over the rounds. Only the ratios mean anything on a shared
machine, and what workers add only where nobody else uses the processors: of all tries those rounds count in which
others took the least of them, and the share they took is part of the result. Writes
benchmarks/results/environments.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.build import environments
from reverie.commands.composition import composed
from reverie.environments.vector import VectorEnvironment
from reverie.types import Space

RESULTS = Path(__file__).parent / "results"
MANY = 8
ONE_OVER_BARE, WORKERS_OVER_ONE = 0.85, 1.6
"""What is aimed at, on two cores."""
QUIET = 0.03
"""Share of the processors that others may take in a round that is good enough to need no further tries."""


def bare_atari() -> Callable[[], None]:
    import ale_py
    from ale_py.roms import get_rom_path
    from PIL import Image

    ale = ale_py.ALEInterface()
    ale.setLoggerMode(ale_py.LoggerMode.Error)
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(get_rom_path("pong"))
    actions = _drawn(ale.getMinimalActionSet())
    frames = [np.empty((*ale.getScreenDims(), 3), np.uint8) for _ in range(2)]

    def step() -> None:
        if ale.game_over():
            ale.reset_game()
        action = next(actions)
        for frame in range(4):
            ale.act(action)
            if frame >= 2:
                ale.getScreenRGB(frames[frame - 2])
        picture = Image.fromarray(np.maximum(*frames)).resize((64, 64), Image.Resampling.BILINEAR)
        np.array(picture)

    return step


def bare_dmc() -> Callable[[], None]:
    from dm_control import suite

    env = suite.load("walker", "walk", task_kwargs={"random": 0})
    actions = _drawn(list(np.random.default_rng(0).uniform(-1, 1, (1000, 6))))
    last = [env.reset()]

    def step() -> None:
        if last[0].last():
            last[0] = env.reset()
        last[0] = env.step(next(actions))
        for value in last[0].observation.values():
            np.asarray(value, np.float32)

    return step


def bare_crafter() -> Callable[[], None]:
    import crafter

    env = crafter.Env(size=(64, 64), seed=0)
    actions = _drawn(list(range(17)))
    env.reset()

    def step() -> None:
        _, _, is_over, _ = env.step(next(actions))
        if is_over:
            env.reset()

    return step


def bare_minigrid() -> Callable[[], None]:
    import gymnasium
    import minigrid  # noqa: F401 - registers its environments

    env = gymnasium.make("MiniGrid-DoorKey-8x8-v0", disable_env_checker=True)
    actions = _drawn(list(range(7)))
    env.reset(seed=0)
    one_hots = [np.eye(count, dtype=np.float32) for count in (11, 6, 3)]

    def step() -> None:
        seen, _, terminated, truncated, _ = env.step(next(actions))
        view = seen["image"]
        np.concatenate([one_hot[view[..., part]] for part, one_hot in enumerate(one_hots)], -1).ravel()
        if terminated or truncated:
            env.reset()

    return step


def _drawn(choices: list[Any]) -> Iterator[Any]:
    """Random actions without end, drawn before they are needed."""
    rng = np.random.default_rng(0)
    return itertools.cycle([choices[index] for index in rng.integers(len(choices), size=1000)])


CASES: dict[str, tuple[Callable[[], Callable[[], None]], str, str]] = {
    "atari": (bare_atari, "atari_pong", "atari100k"),
    "dmc proprio": (bare_dmc, "dmc_walker_walk", "dmc"),
    "crafter": (bare_crafter, "crafter_reward", "crafter"),
    "minigrid": (bare_minigrid, "minigrid_DoorKey-8x8-v0", "minigrid"),
}


class Through:
    """One or many environments of a task through Reverie, with random actions."""

    def __init__(self, task: str, environment: str, *, num_envs: int, in_workers: bool) -> None:
        config = composed(task, ["experiment=random_cartpole", f"environment={environment}"])
        config.environment.in_workers = in_workers
        self.env: VectorEnvironment = environments(config, num_envs=num_envs, seed=0, allow=None)
        # Drawn before: choosing an action is the policy's work.
        self._actions = itertools.cycle([self._action(self.env.spaces.action, seed) for seed in range(1000)])
        self.env.observe()

    def step(self) -> None:
        self.env.step(next(self._actions))

    def _action(self, space: Space, seed: int) -> torch.Tensor:
        rng, shape = np.random.default_rng(seed), (self.env.num_envs, *space.shape)
        if space.classes is None:
            return torch.from_numpy(rng.uniform(-1, 1, shape).astype(np.float32))
        return torch.from_numpy(rng.integers(0, np.array(space.classes), shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--tries", type=int, help="rounds to choose the quietest from (default: as many as rounds)")
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    given = parser.parse_args()
    torch.set_num_threads(1)
    tries = max(given.rounds, given.tries or 0)
    results = {name: measured(name, seconds=given.seconds, rounds=given.rounds, tries=tries) for name in given.only}
    about = {"hardware": _hardware(), "versions": _versions(), "commit": _commit()}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "environments.json").write_text(json.dumps({**about, "results": results}, indent=1) + "\n")


def measured(name: str, *, seconds: float, rounds: int, tries: int) -> dict[str, Any]:
    bare, task, environment = CASES[name]
    here = Through(task, environment, num_envs=1, in_workers=False)
    one = Through(task, environment, num_envs=1, in_workers=True)
    many = Through(task, environment, num_envs=MANY, in_workers=True)
    steppers = {"bare": (bare(), 1), "one": (here.step, 1), "one_worker": (one.step, 1), "workers": (many.step, MANY)}
    tried: list[tuple[float, dict[str, float]]] = []
    while len(tried) < tries and sum(share < QUIET for share, _ in tried) < rounds:
        others, start = _seconds_of_others(), time.perf_counter()
        rated = {key: _rate(step, seconds) * count for key, (step, count) in steppers.items()}
        processors = (time.perf_counter() - start) * (os.cpu_count() or 1)
        # The machine counts in ticks and a process exactly, so that the difference may fall below nothing.
        tried.append((max(0.0, _seconds_of_others() - others) / processors, rated))
    for through in (here, one, many):
        through.env.close()
    kept = sorted(tried, key=lambda one: one[0])[:rounds]
    rates = {key: [rated[key] for _, rated in kept] for key in steppers}
    result = {
        "task": task,
        "environment": environment,
        "others_share": round(statistics.median(share for share, _ in kept), 3),
        "steps_per_second": {key: round(statistics.median(values)) for key, values in rates.items()},
        "one_over_bare": _ratio(rates["one"], rates["bare"]),
        "workers_over_one": _ratio(rates["workers"], rates["one"]),
        "workers_over_one_worker": _ratio(rates["workers"], rates["one_worker"]),
    }
    verdict = "reached" if result["one_over_bare"] >= ONE_OVER_BARE else "missed"
    print(f"{name}: one environment {result['one_over_bare']} of bare (aim {ONE_OVER_BARE}: {verdict}), ", end="")
    verdict = "reached" if result["workers_over_one"] >= WORKERS_OVER_ONE else "missed"
    print(f"{MANY} in workers {result['workers_over_one']} times one (aim {WORKERS_OVER_ONE}: {verdict}); ", end="")
    print(f"others took {result['others_share']:.0%} in {len(kept)} of {len(tried)} rounds", flush=True)
    return result


def _seconds_of_others() -> float:
    """Processor time that all but this process and its children have used since the machine started; 0 off Linux."""
    if not Path("/proc/stat").exists():
        return 0.0
    user, nice, system, _, _, interrupts, soft, stolen = map(int, Path("/proc/stat").read_text().split()[1:9])
    children = [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]
    ours = 0
    for pid in ("self", *children):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ours += int(fields[11]) + int(fields[12])
    return (user + nice + system + interrupts + soft + stolen - ours) / os.sysconf("SC_CLK_TCK")


def _rate(step: Callable[[], None], seconds: float) -> float:
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        step()
        count += 1
    return count / elapsed


def _ratio(ours: list[float], theirs: list[float]) -> float:
    return round(statistics.median(one / other for one, other in zip(ours, theirs, strict=True)), 3)


def _hardware() -> dict[str, Any]:
    return {"machine": platform.machine(), "cpu_count": os.cpu_count()}


def _versions() -> dict[str, str]:
    names = ("reverie", "numpy", "torch", "ale-py", "dm-control", "mujoco", "crafter", "minigrid")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def _commit() -> str:
    return subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=RESULTS.parent, capture_output=True, text=True, check=False
    ).stdout.strip()


if __name__ == "__main__":
    main()
