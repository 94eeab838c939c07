"""How well does World Models (2018) drive, and what did it take?

    python benchmarks/carracing.py [--form laptop] [--seeds 0] [--minutes 20] [--set environment.num_workers=12]

Runs the experiment `og_wm_carracing_small` as it is (`laptop`), or with more rollouts and a larger population for a
machine of many processors (`workstation`), one seed after the other. A run that `--minutes` do not suffice for is
stopped with a checkpoint; the same command goes on with it, and only reads finished ones. Then the best controller
plays `--episodes` of Gymnasium's CarRacing. Writes benchmarks/results/carracing.json, where runs of the other form and
seeds stay, and a picture of all.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from training_runs import Line, TrainingRun, add_arguments, work, written

RESULTS = Path(__file__).parent / "results"
FORMS = {
    "laptop": [],
    "workstation": [
        *("training.total_timesteps=100000", "buffer.replay.capacity=100000"),
        *("training.lengths.vae_updates=8000", "training.lengths.mdn_updates=4000"),
        *("environment.num_envs=32", "environment.num_workers=16", "evaluation.envs=10"),
        *("controller.population.population=64", "controller.population.mean_episodes=64"),
        *("controller.population.episodes=1", "runtime=auto", "runtime.precision=float32", "runtime.threads=1"),
    ],
}
PUBLISHED = {
    "Ha and Schmidhuber (2018)": {"mean": 906, "deviation": 21, "generations": 1800},
    "the port of Tallec and others": {"mean": 860, "deviation": 120, "generations": None},
}
"""Over 100 episodes; the port does not say after how many generations."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--form", choices=FORMS, default="laptop")
    parser.add_argument("--episodes", type=int, default=100, help="of the best controller at the end")
    add_arguments(parser, folder="runs/benchmark_carracing")
    given = parser.parse_args()
    new = []
    for seed in given.seeds:  # one after the other
        name = f"{given.form}-{seed}"
        settings = [*FORMS[given.form], f"experiment.seed={seed}", *given.set]
        words = ["experiment=og_wm_carracing_small", *settings]
        run = TrainingRun(logdir=given.folder / name, notes=given.folder / "notes" / name, settings=words)
        work([run], parallel=1, minutes=given.minutes)
        if run.lines():
            new.append({"form": given.form, "seed": seed, "settings": settings, **_summary(run, given.episodes)})
    file = RESULTS / "carracing.json"
    about = {"experiment": "og_wm_carracing_small", "published": PUBLISHED}
    runs = written(file, new, about=about, keys=("form", "seed"))
    if begun := [run for run in runs if run["generations"]]:
        _draw(begun, file.with_suffix(".png"))
    for run in new:
        reached = "no controller yet" if run["score"] is None else f"{run['score']['return_mean']:.0f}"
        print(f"{run['form']} seed {run['seed']}: {reached} after {len(run['generations'])} generations")


def _summary(run: TrainingRun, episodes: int) -> Line:
    """The whole run: every generation, every trial of the mean, and what the best mean scores."""
    lines = run.lines()
    has_controller = any("train/mean_fitness" in line for line in lines)  # or it was stopped before the first trial
    return {
        "is_finished": run.is_finished,
        "frames": lines[-1]["env_frames"],
        "wall_seconds": round(lines[-1]["wall_seconds"]),
        "score": _score(run, episodes) if has_controller else None,
        "evaluation_at_the_end": [line["eval/return_mean"] for line in lines if "eval/return_mean" in line],
        "generations": [
            [line["env_frames"], *(round(line[f"train/fitness_{kind}"], 1) for kind in ("mean", "best", "worst"))]
            for line in lines
            if "train/fitness_mean" in line
        ],
        "means": [
            [line["env_frames"], round(line["train/mean_fitness"], 1)] for line in lines if "train/mean_fitness" in line
        ],
        **run.about(),
    }


def _score(run: TrainingRun, episodes: int) -> Line:
    command = [sys.executable, "-m", "reverie", "eval", str(run.logdir), "--episodes", str(episodes), "--json"]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def _draw(runs: list[Line], path: Path) -> None:
    figure = Figure(figsize=(5.2 * len(runs), 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for place, run in enumerate(runs):
        axes = figure.add_subplot(1, len(runs), place + 1)
        frames, mean, best, _ = zip(*run["generations"], strict=True)
        axes.plot(frames, best, color="0.7", linewidth=1, label="best member")
        axes.plot(frames, mean, linewidth=1.3, label="mean of the members")
        if run["means"]:
            axes.plot(*zip(*run["means"], strict=True), marker="o", markersize=3, linewidth=1, label="the mean itself")
        for (name, published), style in zip(PUBLISHED.items(), ("--", ":"), strict=True):
            axes.axhline(published["mean"], color="0.4", linewidth=0.8, linestyle=style, label=name)
        axes.set(xlabel="environment frames", ylabel="return", ylim=(-100, 950))
        axes.set_title(f"{run['form']}, seed {run['seed']}: {len(frames)} generations", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7, loc="lower right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
