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
import math
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from reverie.orchestration.report import read_metrics

HERE = Path(__file__).parent
PUBLISHED = json.loads((HERE / "published" / "dreamerv3_atari100k.json").read_text())["tasks"]
GAMES = ["pong", "boxing", "breakout", "freeway", "krull", "crazy_climber"]
FRAMES_PER_STEP = 4
SESSIONS = "sessions.jsonl"
"""Beside each run folder: one line for each process that worked on the run."""
Run = tuple[str, int]
"""Game and seed."""
Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [task.removeprefix("atari_") for task in PUBLISHED]
    parser.add_argument("--games", nargs="+", choices=known, default=GAMES, metavar="GAME", help="such as road_runner")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--size", default="12m")
    parser.add_argument("--steps", type=int, default=100_000, help="agent steps of four frames")
    parser.add_argument("--parallel", type=int, default=1, help="runs side by side")
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop runs that are not finished by then")
    parser.add_argument("--folder", type=Path, default=Path("runs/benchmark_atari100k"), help="where the runs lie")
    parser.add_argument("--results", type=Path, default=HERE / "results" / "atari100k.json")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, the same for all runs")
    given = parser.parse_args()
    runs: list[Run] = list(itertools.product(given.games, given.seeds))
    places = {run: given.folder / f"{run[0]}-{run[1]}" for run in runs}
    _work(places, given, deadline=time.monotonic() + 60 * given.minutes)
    about = {"size": given.size, "side_by_side": min(given.parallel, len(runs)), "settings": given.set}
    new = [_summary(run, place) | about for run, place in places.items() if _lines(place)]
    everything = [*new, *_other_runs(given.results, runs)]
    everything.sort(key=lambda one: (one["game"], one["seed"]))
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text(json.dumps({"experiment": "dreamer_atari100k", "runs": everything}, indent=1) + "\n")
    _draw(everything, given.results.with_suffix(".png"))
    for one in new:
        _say(one)


def _work(places: dict[Run, Path], given: argparse.Namespace, *, deadline: float) -> None:
    """Start runs as others end, until all are finished or the time is up."""
    waiting = [run for run, place in places.items() if not _is_finished(place)]
    working: dict[Run, tuple[subprocess.Popen[bytes], float]] = {}
    try:
        while waiting or working:
            while waiting and len(working) < given.parallel and time.monotonic() < deadline:
                run = waiting.pop(0)
                working[run] = _started(run, places[run], given), time.time()
            if time.monotonic() >= deadline:
                return
            time.sleep(0.2)
            for run in [run for run, (process, _) in working.items() if process.poll() is not None]:
                _ended(run, places[run], *working.pop(run))
    finally:
        for process, _ in working.values():
            process.send_signal(signal.SIGTERM)
        for run, (process, began) in working.items():
            process.wait()
            _ended(run, places[run], process, began)


def _started(run: Run, place: Path, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    game, seed = run
    place.mkdir(parents=True, exist_ok=True)
    settings = [f"size={given.size}", f"task=atari_{game}", f"experiment.seed={seed}", f"logdir={place / 'run'}"]
    settings += [f"training.total_timesteps={given.steps}", f"buffer.replay.capacity={given.steps}"]
    settings += ["evaluation.every_steps=null", "evaluation.episodes=10", "evaluation.envs=10"]
    settings += ["checkpoint.every_steps=25000", "logging.every_steps=500", *given.set]
    command = [sys.executable, "-m", "reverie", "train", "experiment=dreamer_atari100k", *settings]
    with (place / "output.txt").open("ab") as output:
        return subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)


def _ended(run: Run, place: Path, process: subprocess.Popen[bytes], began: float) -> None:
    if process.returncode not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):  # the last before it listens
        raise SystemExit(f"{run} ended with code {process.returncode}: see {place / 'output.txt'}")
    with (place / SESSIONS).open("a") as sessions:
        sessions.write(json.dumps({"began": round(began), "seconds": round(time.time() - began, 1)}) + "\n")


def _is_finished(place: Path) -> bool:
    about = place / "run" / "run.json"
    return about.exists() and json.loads(about.read_text())["status"] == "finished"


def _lines(place: Path) -> list[Line]:
    metrics = place / "run" / "metrics.jsonl"
    return list(read_metrics(metrics)) if metrics.exists() else []


def _summary(run: Run, place: Path) -> Line:
    game, seed = run
    lines, about = _lines(place), json.loads((place / "run" / "run.json").read_text())
    curve = [
        [line["env_frames"], round(line["collect/return_mean"], 2), line["collect/episodes"]]
        for line in lines
        if "collect/episodes" in line
    ]
    evaluated = [line["eval/return_mean"] for line in lines if "eval/return_mean" in line]
    published = PUBLISHED[f"atari_{game}"]
    score = _score(curve)
    return {
        "game": game,
        "seed": seed,
        "frames": lines[-1]["env_frames"],
        "updates": lines[-1]["updates"],
        "is_finished": _is_finished(place),
        "score": score,
        "human_normalised": None if score is None else _normalised(score, published),
        "evaluation_of_ten_episodes": round(evaluated[-1], 2) if evaluated else None,
        "published": {name: value for name, value in published.items() if name != "curves"},
        "seconds": _seconds(place, lines),
        "shares": _shares(lines),
        "curve": curve,
        **{key: about[key] for key in ("hardware", "versions", "commit")},
    }


def _score(curve: list[list[float]]) -> float | None:
    """As published; None where no episode ended in the last 10,000 frames of 400,000."""
    last = [(score, episodes) for frames, score, episodes in curve if 390_000 < frames <= 400_000]
    total = sum(episodes for _, episodes in last)
    return round(sum(score * episodes for score, episodes in last) / total, 2) if total else None


def _normalised(score: float, published: Line) -> float:
    return round((score - published["random"]) / (published["human"] - published["random"]), 3)


def _seconds(place: Path, lines: list[Line]) -> Line:
    """Wall time of all processes, from their start to their end, and some of its parts."""
    sessions = place / SESSIONS
    took = [json.loads(line)["seconds"] for line in sessions.read_text().splitlines()] if sessions.exists() else []
    learning = [line["wall_seconds"] for line in lines if line["updates"]]
    told = [line for line in lines if "time/evaluate" in line]
    aside = {kind: round(told[-1][f"time/{kind}"] * told[-1]["wall_seconds"], 1) for kind in ("evaluate", "checkpoint")}
    return {
        "processes": took,
        "all": round(sum(took), 1) if took else None,
        "before_the_first_line_with_updates": round(learning[0], 1) if learning else None,
        # Shares are those of one process: with several, nobody knows what the earlier ones spent.
        **(aside if len(took) == 1 else {}),
    }


def _shares(lines: list[Line]) -> Line:
    """Of the last process; ``learning`` is the device's time in updates over wall, in the median line that learned."""
    told = [line for line in lines if "time/env" in line]
    shares = {name[5:]: round(value, 4) for name, value in told[-1].items() if name.startswith("time/")} if told else {}
    learning = [line["time/learning"] for line in told[1:] if "time/learning" in line]
    return shares | ({"learning": round(statistics.median(learning), 4)} if learning else {})


def _other_runs(file: Path, runs: list[Run]) -> list[Line]:
    """Those of earlier times."""
    found = json.loads(file.read_text())["runs"] if file.exists() else []
    return [one for one in found if (one["game"], one["seed"]) not in runs]


def _say(run: Line) -> None:
    published = run["published"]
    print(f"{run['game']} seed {run['seed']} ({run['size']}): {run['frames']:.0f} frames, ", end="")
    print(f"{run['updates']:.0f} updates, {run['seconds']['all']} s; score {run['score']}, ", end="")
    print(f"evaluation {run['evaluation_of_ten_episodes']}; published with 200m ", end="")
    print(f"{published['dreamer_v3']} (2023: {published['dreamer_v3_2023']}, random {published['random']}); ", end="")
    print(f"updates took {run['shares'].get('learning', 'an unknown share')} of the time")


def _draw(runs: list[Line], path: Path) -> None:
    games = sorted({run["game"] for run in runs})
    rows, columns = -(-len(games) // 3), min(3, max(1, len(games)))
    figure = Figure(figsize=(4.2 * columns, 3.2 * max(1, rows)), layout="constrained")
    FigureCanvasAgg(figure)
    for number, game in enumerate(games):
        axes = figure.add_subplot(rows, columns, number + 1)
        published = PUBLISHED[f"atari_{game}"]
        for place, curve in enumerate(published["curves"].values()):
            label = None if place else "published seeds (200m)"
            axes.plot(*zip(*curve, strict=True), color="0.75", linewidth=1, label=label)
        axes.axhline(published["dreamer_v3_2023"], color="0.5", linewidth=1, linestyle=":", label="2023, at the end")
        for run in (one for one in runs if one["game"] == game and one["curve"]):
            frames, returns, _ = zip(*run["curve"], strict=True)
            axes.plot(frames, returns, linewidth=1, label=f"{run['size']}, seed {run['seed']}")
        axes.set(xlabel="environment frames", ylabel="return of training episodes", title=game)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
