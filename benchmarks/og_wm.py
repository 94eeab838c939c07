"""Does the evolution of World Models keep all processors busy with CarRacing?

    python benchmarks/og_wm.py [--seconds 5] [--rounds 7] [--size og_wm]

The bare game in as many processes as there are processors, and a population that plays it through Reverie: simulators
in as many worker processes, the VAE, the MDN-RNN and one controller for each environment in the main process. They take
turns in short rounds, so that whatever else the machine does hits both alike; the result is the median over the rounds
of the ratio of frames per second. Writes benchmarks/results/og_wm.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.build import assemble
from reverie.commands.composition import composed_run
from reverie.runtime.processors import usable_processors
from reverie.types import Phase
from reverie.workflows.og_wm import OgWm

RESULTS = Path(__file__).parent / "results"
AIM = 0.85


def bare_game(orders: Connection) -> None:
    """A process that plays for as many seconds as it is told, and answers with its frames."""
    from gymnasium.envs.box2d.car_racing import CarRacing

    env, rng = CarRacing(), np.random.default_rng(0)
    env.reset(seed=0)
    while (seconds := orders.recv()) is not None:
        frames, start = 0, time.perf_counter()
        while time.perf_counter() - start < seconds:
            _, _, is_over, _, _ = env.step(rng.uniform((-1, 0, 0), 1).astype(np.float32))
            frames += 1
            if is_over:
                env.reset()
        orders.send(frames / (time.perf_counter() - start))


@contextmanager
def bare_games(count: int) -> Iterator[list[Connection]]:
    context = multiprocessing.get_context("spawn")
    pairs = [context.Pipe() for _ in range(count)]
    processes = [context.Process(target=bare_game, args=(theirs,), daemon=True) for _, theirs in pairs]
    for process in processes:
        process.start()
    ours = [own for own, _ in pairs]
    try:
        yield ours
    finally:
        for own in ours:
            own.send(None)
        for process in processes:
            process.join(30)


def bare_rate(games: list[Connection], seconds: float) -> float:
    """Frames per second of all processes together."""
    for game in games:
        game.send(seconds)
    return sum(game.recv() for game in games)


def evolving_rate(workflow: OgWm, phase: Phase, num_envs: int, frames: int, seconds: float) -> float:
    steps, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        workflow.collect_step(0, phase=phase)
        workflow.evolve(phase=phase)
        steps += num_envs
    return steps * frames / (time.perf_counter() - start)


def measured(*, seconds: float, rounds: int, size: str, num_envs: int, threads: int) -> dict[str, Any]:
    torch.set_num_threads(threads)
    population = {"population": 2 * num_envs, "episodes": 1, "mean_every": 1000, "mean_episodes": 1}
    settings = [f"controller.population.{key}={value}" for key, value in population.items()]
    overrides = ["experiment=og_wm_carracing_small", f"size={size}", f"environment.num_envs={num_envs}"]
    config = composed_run([*overrides, *settings, "environment.simulator.action_repeat=1"])
    parts = assemble(config, device=torch.device("cpu"), allow=None)
    workflow = parts.workflow
    assert isinstance(workflow, OgWm)
    phase = Phase(name="evolve", type="online", progress=torch.zeros(()), controller="population")
    ratios: list[float] = []
    rates: list[tuple[float, float]] = []
    with closing(parts), bare_games(usable_processors()) as games:
        evolving_rate(workflow, phase, num_envs, 1, seconds)  # tracks are made, pages are touched
        bare_rate(games, seconds)
        for _ in range(rounds):
            bare = bare_rate(games, seconds)
            ours = evolving_rate(workflow, phase, num_envs, 1, seconds)
            ratios.append(ours / bare)
            rates.append((bare, ours))
            print(f"bare {bare:.0f} frames/s, evolving {ours:.0f}, ratio {ours / bare:.2f}", flush=True)
    return {
        "ratio": statistics.median(ratios),
        "aim": AIM,
        "ratios": ratios,
        "frames_per_second": rates,
        "processes": usable_processors(),
        "num_envs": num_envs,
        "size": size,
        "threads": threads,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", default="og_wm")
    parser.add_argument("--num-envs", type=int, default=4 * usable_processors())
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    result = measured(
        seconds=given.seconds, rounds=given.rounds, size=given.size, num_envs=given.num_envs, threads=given.threads
    )
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions = {name: version(name) for name in ("torch", "gymnasium", "cma")}
    machine = {"machine": platform.machine(), "python": platform.python_version(), **versions, "commit": commit}
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps({**result, "machine": machine}, indent=1)
    (RESULTS / "og_wm.json").write_text(text + "\n", encoding="utf-8")
    print(f"ratio {result['ratio']:.2f} (aim {AIM})")


if __name__ == "__main__":
    main()
