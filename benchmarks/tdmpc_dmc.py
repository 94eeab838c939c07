"""How well does TD-MPC2 learn the Control Suite from state, beside the published seeds, and how long does it take?

    python benchmarks/tdmpc_dmc.py [--tasks dmc_walker_walk] [--seeds 0] [--parallel 2] [--minutes 24]

Runs the experiment `tdmpc_dmc` (5m) for every task and seed, as many at a time as `--parallel` says, up to `--frames`,
seed steps included. Every 100,000 frames, and at the end, the agent plays ten episodes without noise: that is what was
published, so that is compared. Runs that `--minutes` do not suffice for are stopped with a checkpoint, and go on when
the same command is given again; finished ones are only read. Writes benchmarks/results/tdmpc_dmc.json, where the runs
of other tasks and seeds stay, and a picture of the curves beside the published ones.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from panels import panels
from training_runs import Line, TrainingRun, add_arguments, curve_of, seconds_of, shares_of, work, written

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "published" / "tdmpc2_dmc.json").read_text())["tasks"]
FRAMES_PER_STEP = 2
SEED_STEPS = 2500
"""Random ones, which come before `training.total_timesteps` and are counted by those who published."""
CURVE_FRAMES = 10_000
"""An episode has 1,000."""
Key = tuple[str, int]
"""Task and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=PUBLISHED, default=list(PUBLISHED))
    parser.add_argument("--frames", type=int, default=500_000)
    parser.add_argument("--parallel", type=int, default=1, help="runs side by side")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "tdmpc_dmc.json")
    add_arguments(parser, folder="runs/benchmark_tdmpc_dmc")
    given = parser.parse_args()
    if given.frames <= SEED_STEPS * FRAMES_PER_STEP:
        parser.error(f"--frames must be more than {SEED_STEPS * FRAMES_PER_STEP}, which are random")
    keys: list[Key] = list(itertools.product(given.tasks, given.seeds))
    runs = {key: _run(key, given) for key in keys}
    work(list(runs.values()), parallel=given.parallel, minutes=given.minutes)
    new = [_summary(key, run) | {"settings": given.set} for key, run in runs.items() if run.lines()]
    everything = written(given.results, new, about={"experiment": "tdmpc_dmc"}, keys=("task", "seed"))
    _draw(everything, given.results.with_suffix(".png"))
    for one in new:
        _say(one)


def _run(key: Key, given: argparse.Namespace) -> TrainingRun:
    task, seed = key
    place = given.folder / f"{task}-{seed}"
    steps = given.frames // FRAMES_PER_STEP - SEED_STEPS
    settings = ["experiment=tdmpc_dmc", f"task={task}", f"experiment.seed={seed}"]
    settings += [f"training.prefill_steps={SEED_STEPS}", f"training.total_timesteps={steps}"]
    settings += ["evaluation.every_steps=50000", "evaluation.episodes=10", "checkpoint.every_steps=25000"]
    settings += ["logging.every_steps=500", "logging.every_updates=500", *given.set]
    return TrainingRun(logdir=place / "run", notes=place, settings=settings)


def _summary(key: Key, run: TrainingRun) -> Line:
    task, seed = key
    lines = run.lines()
    evaluations = [
        [line["env_frames"], *(round(line[f"eval/return_{kind}"], 1) for kind in ("mean", "min", "max"))]
        for line in lines
        if "eval/return_mean" in line
    ]
    return {
        "task": task,
        "seed": seed,
        "frames": lines[-1]["env_frames"],
        "updates": lines[-1]["updates"],
        "is_finished": run.is_finished,
        **_reached(task, evaluations),
        "side_by_side": max((session["side_by_side"] for session in run.sessions()), default=None),
        "seconds": seconds_of(run, lines) | _training_seconds(lines),
        "shares": shares_of(lines),
        "evaluations": evaluations,
        "curve": _coarse(curve_of(lines)),
        **run.about(),
    }


def _reached(task: str, evaluations: list[list[float]]) -> Line:
    """The last evaluation beside the published ones at the same number of frames."""
    if not evaluations:
        return {"score": None, "published": None, "share_of_published": None}
    frames, score = evaluations[-1][:2]
    seeds = _published(task, frames)
    mean = float(np.mean(list(seeds.values())))
    published = {"frames": frames, "mean": round(mean, 1), "seeds": seeds}
    return {"score": score, "published": published, "share_of_published": round(score / mean, 3)}


def _published(task: str, frames: float) -> dict[str, float]:
    """By seed; straight between the places that were published."""
    curves = {seed: np.array(curve).T for seed, curve in PUBLISHED[task].items()}
    return {seed: round(float(np.interp(frames, *curve)), 1) for seed, curve in curves.items()}


def _training_seconds(lines: list[Line]) -> Line:
    """Of the seed steps, and of all that was done, both without the start of the processes."""
    seeding = [line["wall_seconds"] for line in lines if not line["updates"]]
    has_learned = bool(lines[-1]["updates"])
    return {
        "training": round(lines[-1]["wall_seconds"], 1),
        "before_the_first_update": round(seeding[-1], 1) if seeding and has_learned else None,
    }


def _coarse(curve: list[list[float]]) -> list[list[float]]:
    """Means of `CURVE_FRAMES`, each at the end of its frames."""
    found: list[list[float]] = []
    for place, points in itertools.groupby(curve, key=lambda point: -(-point[0] // CURVE_FRAMES)):
        _, returns, episodes = np.array(list(points)).T
        mean = round(float(np.average(returns, weights=episodes)), 1)
        found.append([place * CURVE_FRAMES, mean, float(episodes.sum())])
    return found


def _say(run: Line) -> None:
    state = "finished" if run["is_finished"] else "stopped"
    print(f"{run['task']} seed {run['seed']}: {state} at {run['frames']:.0f} frames, ", end="")
    print(f"{run['updates']:.0f} updates, {run['seconds']['all']} s; ", end="")
    if run["score"] is None:
        print("not evaluated yet")
        return
    published = run["published"]
    print(f"evaluation {run['score']} at {published['frames']:.0f} frames, published {published['mean']} ", end="")
    print(f"({', '.join(map(str, published['seeds'].values()))}): {run['share_of_published']:.1%} of it")


def _draw(runs: list[Line], path: Path) -> None:
    tasks = sorted({run["task"] for run in runs})
    figure, found = panels(tasks, size=(5.2, 3.6), columns=2, ylabel="return")
    for task, axes in found:
        mine = [run for run in runs if run["task"] == task]
        end = max(run["frames"] for run in mine)
        for number, curve in enumerate(PUBLISHED[task].values()):
            label = None if number else "published seeds"
            axes.plot(*zip(*curve, strict=True), color="0.75", linewidth=1, label=label)
        mean = float(np.mean(list(_published(task, end).values())))
        label = f"published, mean at {end:,.0f}: {mean:.1f}"
        axes.axhline(mean, color="0.4", linewidth=0.8, linestyle="--", label=label)
        for number, run in enumerate(mine):
            color = f"C{number}"
            if run["curve"]:
                frames, returns, _ = zip(*run["curve"], strict=True)
                axes.plot(frames, returns, color=color, linewidth=1, alpha=0.6, label=f"seed {run['seed']}, training")
            if run["evaluations"]:
                frames, returns, *_ = zip(*run["evaluations"], strict=True)
                axes.plot(frames, returns, "o-", color=color, markersize=4, label=f"seed {run['seed']}, evaluation")
        axes.set(xlim=(0, end), ylim=(0, 1000))
        axes.legend(frameon=False, fontsize=7, loc="lower right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
