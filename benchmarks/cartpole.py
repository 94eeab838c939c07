"""How well and how fast does the default experiment learn? Five seeds of `reverie train`, one curve each.

    python benchmarks/cartpole.py [--seeds 0 1 2 3 4] [--parallel 2]

Writes benchmarks/results/dreamer_cartpole.json (curves, final evaluations, hardware, versions, commit) and a picture.
Runs that are already finished in --folder are not run again. A run uses one thread; two side by side on two cores slow
each other down a little, so the times are upper bounds.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from training_runs import Line, TrainingRun, work

RESULTS = Path(__file__).parent / "results"
CURVES = ("collect/return_mean", "eval/return_mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--parallel", type=int, default=2, help="runs side by side")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark_cartpole"), help="where the runs lie")
    given = parser.parse_args()
    trained = {seed: _run(seed, given.folder) for seed in given.seeds}
    work(list(trained.values()), parallel=given.parallel)
    runs = [_summary(seed, run) for seed, run in trained.items()]
    abouts = [run.pop("about") for run in runs]
    result = {"experiment": "dreamer_cartpole", "parallel": given.parallel, **abouts[0], "runs": runs}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "dreamer_cartpole.json").write_text(json.dumps(result, indent=1) + "\n")
    _draw(runs, RESULTS / "dreamer_cartpole.png")
    for run in runs:
        print(f"seed {run['seed']}: final return {run['final_return_mean']:.1f} after {run['wall_seconds']:.0f} s")


def _run(seed: int, folder: Path) -> TrainingRun:
    name = f"seed{seed}"
    return TrainingRun(logdir=folder / name, notes=folder / "notes" / name, settings=[f"experiment.seed={seed}"])


def _summary(seed: int, run: TrainingRun) -> Line:
    lines = run.lines()
    last = [line for line in lines if "eval/return_mean" in line][-1]
    return {
        "seed": seed,
        "final_return_mean": last["eval/return_mean"],
        "final_return_min": last["eval/return_min"],
        "final_episodes": last["eval/episodes"],
        "agent_steps": last["agent_steps"],
        "updates": last["updates"],
        "wall_seconds": last["wall_seconds"],
        "curves": {
            name: [[line["agent_steps"], line["wall_seconds"], line[name]] for line in lines if name in line]
            for name in CURVES
        },
        "about": run.about(),
    }


def _draw(runs: list[Line], path: Path) -> None:
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for run in runs:
        steps, _, returns = zip(*run["curves"]["eval/return_mean"], strict=True)
        axes.plot(steps, returns, marker="o", markersize=3, linewidth=1.3, label=f"seed {run['seed']}")
    axes.axhline(500, color="0.8", linewidth=0.8, zorder=0)
    axes.set(xlabel="agent steps", ylabel="evaluation return (20 episodes)", ylim=(0, 520))
    axes.set_title("DreamerV3 on CartPole-v1: seeds of `./reverie train`", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower right")
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
