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
from pathlib import Path
from typing import Any

import numpy as np
from panels import panels
from training_runs import TrainingRun, add_arguments, curve_of, work, written

HERE = Path(__file__).parent
TASKS = ["dmc_cartpole_swingup", "dmc_walker_walk"]
NUM_ENVS = {"proprio": 4, "vision": 8}
"""As those who made the curves: an episode of one among sixteen is 16,000 frames old at its end."""
Key = tuple[str, str, int]
"""Task, form and seed."""
OBJECTIVES = "reverie.components.controllers.actor_objective"
FORMS = {
    "v3": [],
    "v3_dynamics": [
        f"controller.objective._target_={OBJECTIVES}.DynamicsGradient",
        "+controller.objective.has_baseline=true",
    ],
    "v3_reconstruction": ["workflow.loss_weights.reconstruction=10"],
    "v3_2023": [
        *(f"{group}=dreamer_v3_2023" for group in ("components", "controller", "workflow")),
        *("size=2023_s", "training.sampler=uniform"),
    ],
}
"""The published curves from state were made by the form of 2023, with gradients through the dynamics; those from
pictures by `v3`. `v3_dynamics` is `v3` with such gradients and nothing else of 2023, `v3_reconstruction` is `v3` with a
larger weight of what it sees: they tell which difference matters."""
FRAMES_PER_STEP = 2
Curve = list[list[float]]
"""[frames, mean return of the episodes that ended, number of these episodes]"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--observations", choices=NUM_ENVS, default="proprio", help="state or pictures")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=TASKS)
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=["v3"])
    parser.add_argument("--frames", type=int, default=200_000)
    add_arguments(parser, folder=None)
    given = parser.parse_args()
    name = f"dmc_{given.observations}"
    folder = given.folder or Path(f"runs/benchmark_{name}")
    keys: list[Key] = list(itertools.product(given.tasks, given.forms, given.seeds))
    settings = [f"training.total_timesteps={given.frames // FRAMES_PER_STEP}"]
    settings += [f"environment.num_envs={NUM_ENVS[given.observations]}", *given.set]
    runs = {key: _run(f"experiment=dreamer_{name}", key, folder, settings) for key in keys}
    work(list(runs.values()), parallel=len(runs), minutes=given.minutes)
    published = json.loads((HERE / "published" / f"dreamerv3_{name}.json").read_text())["tasks"]
    about = {"side_by_side": len(runs), "settings": given.set}
    new = [_summary(key, run, published[key[0]]) | about for key, run in runs.items() if run.lines()]
    file = HERE / "results" / f"{name}.json"
    everything = written(file, new, about={"experiment": f"dreamer_{name}"}, keys=("task", "form", "seed"))
    _draw(everything, published, file.with_suffix(".png"))
    for one in new:
        _say(one)


def _say(run: dict[str, Any]) -> None:
    places = run["compared"]
    above = sum(one["ours"] > one["high"] for one in places)
    below = sum(one["ours"] < one["low"] for one in places)
    print(f"{run['task']} {run['form']} seed {run['seed']}: {run['frames']:.0f} frames, ", end="")
    print(f"{run['updates']:.0f} updates; of {len(places)} places {above} above the published seeds, ", end="")
    print(f"{below} below them, the rest inside")


def _run(experiment: str, key: Key, folder: Path, settings: list[str]) -> TrainingRun:
    task, form, seed = key
    name = "-".join(map(str, key))
    words = [experiment, *FORMS[form], f"task={task}", f"experiment.seed={seed}", "evaluation.every_steps=50000"]
    words += ["checkpoint.every_steps=50000", "environment.num_workers=2", *settings]
    return TrainingRun(logdir=folder / name, notes=folder / "notes" / name, settings=words)


def _summary(key: Key, run: TrainingRun, published: dict[str, Curve]) -> dict[str, Any]:
    task, form, seed = key
    lines = run.lines()
    curve = curve_of(lines)
    return {
        "task": task,
        "form": form,
        "seed": seed,
        "frames": lines[-1]["env_frames"],
        "updates": lines[-1]["updates"],
        "wall_seconds": round(lines[-1]["wall_seconds"]),
        "curve": curve,
        "compared": compared(curve, published),
        **run.about(),
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
    figure, found = panels(sorted({run["task"] for run in runs}), size=(5.2, 3.6), columns=len(TASKS))
    for task, axes in found:
        for number, seed in enumerate(published[task].values()):
            axes.plot(*zip(*seed, strict=True), color="0.75", linewidth=1, label=None if number else "published seeds")
        for colour, form in enumerate(FORMS):
            label: str | None = form
            for run in (one for one in runs if (one["task"], one["form"]) == (task, form) and one["curve"]):
                frames, returns, _ = zip(*run["curve"], strict=True)
                axes.plot(frames, returns, color=f"C{colour}", marker="o", markersize=2, label=label)
                label = None  # once for all seeds
        axes.set(xlim=(0, max(run["frames"] for run in runs)), ylim=(0, 1000))
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
