"""How well does DreamerV3 play with 400,000 frames of a game, and how long does that take?

    python benchmarks/atari100k.py [--games pong boxing] [--seeds 0 1] [--parallel 1] [--minutes 9]

Runs the experiment `dreamer_atari100k` for every game and seed, as many at a time as `--parallel` says, each with an
evaluation of ten episodes side by side at its end. Runs that `--minutes` do not suffice for are stopped with a
checkpoint, and go on when the same command is given again; finished ones are only read. The score is what was
published: the mean over training episodes that end after 390,000 frames and by 400,000. Writes
benchmarks/results/atari100k.json, where the runs of other games and seeds stay, and a picture of the curves beside the
published seeds. The published agents have 200 million parameters; ours is as large as `--size` says.
"""

from __future__ import annotations

import argparse
import itertools
import json
from pathlib import Path

from panels import panels
from training_runs import Line, TrainingRun, add_arguments, curve_of, seconds_of, shares_of, work, written

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "published" / "dreamerv3_atari100k.json").read_text())["tasks"]
GAMES = ["pong", "boxing", "breakout", "freeway", "krull", "crazy_climber"]
FRAMES_PER_STEP = 4
Key = tuple[str, int]
"""Game and seed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [task.removeprefix("atari_") for task in PUBLISHED]
    parser.add_argument("--games", nargs="+", choices=known, default=GAMES, metavar="GAME", help="such as road_runner")
    parser.add_argument("--size", default="12m")
    parser.add_argument("--steps", type=int, default=100_000, help="agent steps of four frames")
    parser.add_argument("--parallel", type=int, default=1, help="runs side by side")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "atari100k.json")
    add_arguments(parser, folder="runs/benchmark_atari100k")
    given = parser.parse_args()
    keys: list[Key] = list(itertools.product(given.games, given.seeds))
    runs = {key: _run(key, given) for key in keys}
    work(list(runs.values()), parallel=given.parallel, minutes=given.minutes)
    about = {"size": given.size, "side_by_side": min(given.parallel, len(runs)), "settings": given.set}
    new = [_summary(key, run) | about for key, run in runs.items() if run.lines()]
    everything = written(given.results, new, about={"experiment": "dreamer_atari100k"}, keys=("game", "seed"))
    _draw(everything, given.results.with_suffix(".png"))
    for one in new:
        _say(one)


def _run(key: Key, given: argparse.Namespace) -> TrainingRun:
    game, seed = key
    place = given.folder / f"{game}-{seed}"
    settings = ["experiment=dreamer_atari100k", f"size={given.size}", f"task=atari_{game}", f"experiment.seed={seed}"]
    settings += [f"training.total_timesteps={given.steps}", f"buffer.replay.capacity={given.steps}"]
    settings += ["evaluation.every_steps=null", "evaluation.episodes=10", "evaluation.envs=10"]
    settings += ["checkpoint.every_steps=25000", "logging.every_steps=500", *given.set]
    return TrainingRun(logdir=place / "run", notes=place, settings=settings)


def _summary(key: Key, run: TrainingRun) -> Line:
    game, seed = key
    lines = run.lines()
    curve = curve_of(lines, digits=2)
    evaluated = [line["eval/return_mean"] for line in lines if "eval/return_mean" in line]
    published = PUBLISHED[f"atari_{game}"]
    score = _score(curve)
    return {
        "game": game,
        "seed": seed,
        "frames": lines[-1]["env_frames"],
        "updates": lines[-1]["updates"],
        "is_finished": run.is_finished,
        "score": score,
        "human_normalised": None if score is None else _normalised(score, published),
        "evaluation_of_ten_episodes": round(evaluated[-1], 2) if evaluated else None,
        "published": {name: value for name, value in published.items() if name != "curves"},
        "seconds": seconds_of(run, lines),
        "shares": shares_of(lines),
        "curve": curve,
        **run.about(),
    }


def _score(curve: list[list[float]]) -> float | None:
    """As published; None where no episode ended in the last 10,000 frames of 400,000."""
    last = [(score, episodes) for frames, score, episodes in curve if 390_000 < frames <= 400_000]
    total = sum(episodes for _, episodes in last)
    return round(sum(score * episodes for score, episodes in last) / total, 2) if total else None


def _normalised(score: float, published: Line) -> float:
    return round((score - published["random"]) / (published["human"] - published["random"]), 3)


def _say(run: Line) -> None:
    published = run["published"]
    print(f"{run['game']} seed {run['seed']} ({run['size']}): {run['frames']:.0f} frames, ", end="")
    print(f"{run['updates']:.0f} updates, {run['seconds']['all']} s; score {run['score']}, ", end="")
    print(f"evaluation {run['evaluation_of_ten_episodes']}; published with 200m ", end="")
    print(f"{published['dreamer_v3']} (2023: {published['dreamer_v3_2023']}, random {published['random']}); ", end="")
    print(f"updates took {run['shares'].get('learning', 'an unknown share')} of the time")


def _draw(runs: list[Line], path: Path) -> None:
    figure, found = panels(sorted({run["game"] for run in runs}), size=(4.2, 3.2), columns=3)
    for game, axes in found:
        published = PUBLISHED[f"atari_{game}"]
        for place, curve in enumerate(published["curves"].values()):
            label = None if place else "published seeds (200m)"
            axes.plot(*zip(*curve, strict=True), color="0.75", linewidth=1, label=label)
        axes.axhline(published["dreamer_v3_2023"], color="0.5", linewidth=1, linestyle=":", label="2023, at the end")
        for run in (one for one in runs if one["game"] == game and one["curve"]):
            frames, returns, _ = zip(*run["curve"], strict=True)
            axes.plot(frames, returns, linewidth=1, label=f"{run['size']}, seed {run['seed']}")
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
