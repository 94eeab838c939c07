"""Runs in the isolated interpreter: plays every game through the adapter, beside the bare package.

Argument: the adapter's file. Prints, for every game, what differed, as JSON.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import numpy as np
from procgen import ProcgenGym3Env


def main() -> None:
    spec = importlib.util.spec_from_file_location("adapter", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    adapter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(adapter)
    print(json.dumps({game: report(adapter.ProcgenEnvironment, game) for game in adapter.GAMES}))


def report(make: Any, game: str) -> dict[str, Any]:
    """Three episodes of single levels: the adapter, the bare package, and the adapter saved and loaded all the time."""
    rng = np.random.default_rng(0)
    problems: list[str] = []
    steps = terminals = 0
    for level in (3, 40, 500):
        options = {"start_level": level, "num_levels": 1}
        ours, reloaded = (make(task="procgen_" + game, **options) for _ in range(2))
        bare = ProcgenGym3Env(num=1, env_name=game, num_threads=0, rand_seed=9, **options)
        now, again = ours.reset(level), reloaded.reset(level)
        same(problems, "first", now, bare, again)
        for step in range(60):
            action = rng.integers(15)
            bare.act(np.array([action]))
            now, again = ours.step(action), reloaded.step(action)
            steps += 1
            same(problems, f"level {level}, step {step}", now, bare, again)
            if now.is_last:
                terminals += now.is_terminal
                break
            if step % 9 == 0:
                saved = reloaded.get_state()
                reloaded.close()
                reloaded = make(task="procgen_" + game)
                reloaded.set_state(saved)
    return {"problems": problems, "steps": steps, "terminals": int(terminals)}


def same(problems: list[str], where: str, now: Any, bare: Any, again: Any) -> None:
    reward, seen, is_next = bare.observe()
    if not now.is_first and (now.reward != reward[0] or now.is_last != bool(is_next[0])):
        problems.append(f"{where}: reward or end")
    if not now.is_last and not np.array_equal(now.obs["image"], seen["rgb"][0]):
        problems.append(f"{where}: frame")
    if not np.array_equal(now.obs["image"], again.obs["image"]) or now.reward != again.reward:
        problems.append(f"{where}: after loading")


if __name__ == "__main__":
    main()
