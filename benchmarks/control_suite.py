"""Does DreamerV3 learn the Control Suite as fast as the published seeds did?

    python benchmarks/control_suite.py [--observations vision] [--tasks dmc_walker_walk] [--seeds 0 1] [--minutes 20]

Runs the experiment `dreamer_dmc_proprio` (from state) or `dreamer_dmc_vision` (from pictures) for every task, form and
seed, all side by side on one GPU (under NVIDIA's MPS they disturb each other little), and compares the returns of
training episodes with the published ones at the same number of frames. Runs that are not finished after `--minutes`
are stopped and counted as far as they came; runs that are finished in --folder are not run again. Writes
benchmarks/results/dmc_proprio.json or dmc_vision.json, where runs of other tasks, forms and seeds stay, and a picture
of all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reverie.orchestration.report import read_metrics

HERE = Path(__file__).parent
RESULTS = HERE / "results"
TASKS = ["dmc_cartpole_swingup", "dmc_walker_walk"]
NUM_ENVS = {"proprio": 4, "vision": 8}
"""As those who made the curves: an episode of one among sixteen is 16,000 frames old at its end."""
Run = tuple[str, str, int]
"""Task, form and seed."""
FORMS = {
    "v3": [],
    "v3_2023": [
        *(f"{group}=dreamer_v3_2023" for group in ("components", "controller", "workflow")),
        *("size=2023_s", "training.sampler=uniform"),
    ],
}
"""The published curves from state were made by the form of 2023, with gradients through the dynamics; those from
pictures by `v3`."""
FRAMES_PER_STEP = 2
Curve = list[list[float]]
"""[frames, mean return of the episodes that ended, number of these episodes]"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", choices=NUM_ENVS, default="proprio", help="state or pictures")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["v3"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--frames", type=int, default=200_000)
    parser.add_argument("--minutes", type=float, help="stop runs that are not finished by then")
    parser.add_argument("--folder", type=Path, help="where the runs lie (runs/benchmark_dmc_...)")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, the same for all runs")
    given = parser.parse_args()
    name = f"dmc_{given.observations}"
    runs: list[Run] = list(itertools.product(given.tasks, given.forms, given.seeds))
    folders = {run: (given.folder or Path(f"runs/benchmark_{name}")) / "-".join(map(str, run)) for run in runs}
    settings = [f"training.total_timesteps={given.frames // FRAMES_PER_STEP}"]
    settings += [f"environment.num_envs={NUM_ENVS[given.observations]}", *given.set]
    deadline = None if given.minutes is None else time.monotonic() + given.minutes * 60
    started = {run: _started(f"experiment=dreamer_{name}", run, folders[run], settings) for run in runs}
    for run, process in started.items():
        _wait(process, deadline)
        if process.returncode not in (0, 128 + signal.SIGTERM):
            raise SystemExit(f"{run} ended with code {process.returncode}: see above")
    published = json.loads((HERE / "published" / f"dreamerv3_{name}.json").read_text())["tasks"]
    about = {"side_by_side": len(runs), "settings": given.set}
    new = [_summary(run, folders[run], published[run[0]]) | about for run in runs]
    file = RESULTS / f"{name}.json"
    everything = [*new, *_other_runs(file, runs)]
    everything.sort(key=lambda one: (one["task"], one["form"], one["seed"]))
    file.write_text(json.dumps({"experiment": f"dreamer_{name}", "runs": everything}, indent=1) + "\n")
    _draw(everything, published, RESULTS / f"{name}.png")
    for one in new:
        _say(one)


def _say(run: dict[str, Any]) -> None:
    places = run["compared"]
    above = sum(one["ours"] > one["high"] for one in places)
    below = sum(one["ours"] < one["low"] for one in places)
    print(f"{run['task']} {run['form']} seed {run['seed']}: {run['frames']:.0f} frames, ", end="")
    print(f"{run['updates']:.0f} updates; of {len(places)} places {above} above the published seeds, ", end="")
    print(f"{below} below them, the rest inside")


def _other_runs(file: Path, runs: list[Run]) -> list[dict[str, Any]]:
    """Those of earlier times."""
    found = json.loads(file.read_text())["runs"] if file.exists() else []
    return [one for one in found if (one["task"], one["form"], one["seed"]) not in runs]


def _started(experiment: str, run: Run, folder: Path, settings: list[str]) -> subprocess.Popen[bytes]:
    task, form, seed = run
    command = [sys.executable, "-m", "reverie", "train", experiment, *FORMS[form], f"task={task}"]
    command += [f"experiment.seed={seed}", f"logdir={folder}", "evaluation.every_steps=50000"]
    command += ["checkpoint.every_steps=50000", "environment.num_workers=2", *settings]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL)


def _wait(process: subprocess.Popen[bytes], deadline: float | None) -> None:
    try:
        process.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _summary(run: Run, logdir: Path, published: dict[str, Curve]) -> dict[str, Any]:
    task, form, seed = run
    lines = read_metrics(logdir / "metrics.jsonl")
    about = json.loads((logdir / "run.json").read_text())
    curve = [
        [line["env_frames"], round(line["collect/return_mean"], 1), line["collect/episodes"]]
        for line in lines
        if "collect/episodes" in line
    ]
    return {
        "task": task,
        "form": form,
        "seed": seed,
        "frames": lines[-1]["env_frames"],
        "updates": lines[-1]["updates"],
        "wall_seconds": round(lines[-1]["wall_seconds"]),
        "curve": curve,
        "compared": compared(curve, published),
        **{key: about[key] for key in ("hardware", "versions", "commit")},
    }


def compared(curve: Curve, published: dict[str, Curve]) -> list[dict[str, Any]]:
    """Each of our points beside the lowest and the highest published seed at that number of frames."""
    places, seeds = [], list(published.values())
    first = max(seed[0][0] for seed in seeds)
    for frames, ours, _ in curve:
        if frames < first:
            continue  # nothing was published there
        theirs = [float(np.interp(frames, [one[0] for one in seed], [one[1] for one in seed])) for seed in seeds]
        low, high = round(min(theirs), 1), round(max(theirs), 1)
        places.append({"frames": frames, "ours": ours, "low": low, "high": high, "is_inside": low <= ours <= high})
    return places


def _draw(runs: list[dict[str, Any]], published: dict[str, dict[str, Curve]], path: Path) -> None:
    tasks = sorted({run["task"] for run in runs})
    figure = Figure(figsize=(5.2 * len(tasks), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for column, task in enumerate(tasks):
        axes = figure.add_subplot(1, len(tasks), column + 1)
        for number, seed in enumerate(published[task].values()):
            axes.plot(*zip(*seed, strict=True), color="0.75", linewidth=1, label=None if number else "published seeds")
        for run in (one for one in runs if one["task"] == task):
            frames, returns, _ = zip(*run["curve"], strict=True)
            axes.plot(frames, returns, marker="o", markersize=3, label=f"{run['form']}, seed {run['seed']}")
        axes.set(xlabel="environment frames", ylabel="return of training episodes", title=task)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set(xlim=(0, max(run["frames"] for run in runs)), ylim=(0, 1000))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
