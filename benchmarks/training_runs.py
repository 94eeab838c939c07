"""Runs of `reverie train` for the benchmarks: side by side, stopped in time and continued, timed, read and kept."""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reverie.orchestration.report import read_metrics

TRAIN = [sys.executable, "-m", "reverie", "train"]
STOPS = (signal.SIGTERM, signal.SIGINT)
ENDED_WELL = {0, *(128 + number for number in STOPS), *(-number for number in STOPS)}
"""Finished, stopped with a checkpoint, and stopped before it listened to signals."""
LOOK_EVERY_SECONDS = 0.2
Line = dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser, *, folder: str | None) -> None:
    """What benchmarks of training ask for."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--minutes", type=float, default=math.inf, help="stop runs that are not finished by then")
    parser.add_argument("--folder", type=Path, default=folder and Path(folder), help="where the runs lie")
    parser.add_argument("--set", nargs="*", default=[], help="further settings, the same for all runs")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingRun:
    logdir: Path
    notes: Path
    """Folder beside the run, which may hold nothing foreign: what its processes said, and how long they worked."""
    settings: Sequence[str]

    @property
    def output(self) -> Path:
        return self.notes / "output.txt"

    @property
    def is_finished(self) -> bool:
        about = self.logdir / "run.json"
        return about.exists() and json.loads(about.read_text())["status"] == "finished"

    def about(self) -> Line:
        """Hardware, versions and commit."""
        found = json.loads((self.logdir / "run.json").read_text())
        return {key: found[key] for key in ("hardware", "versions", "commit")}

    def lines(self) -> list[Line]:
        """Of its metrics; none where it was stopped too early."""
        metrics = self.logdir / "metrics.jsonl"
        return list(read_metrics(metrics)) if metrics.exists() else []

    def sessions(self) -> list[Line]:
        """One for each process that worked on it: when it began, its seconds, and how many worked side by side."""
        notes = self.notes / "sessions.jsonl"
        return [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []


@dataclass(frozen=True, kw_only=True, slots=True)
class _Session:
    """A process that works on a run."""

    run: TrainingRun
    process: subprocess.Popen[bytes]
    began: float

    @classmethod
    def start(cls, run: TrainingRun) -> _Session:
        run.notes.mkdir(parents=True, exist_ok=True)
        command = [*TRAIN, *run.settings, f"logdir={run.logdir}"]
        with run.output.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        return cls(run=run, process=process, began=time.time())

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None

    def stop(self) -> None:
        if not self.has_ended:
            self.process.send_signal(signal.SIGTERM)

    def note(self, side_by_side: int) -> None:
        """Wait for its end, and write down what it took."""
        code = self.process.wait()
        if code not in ENDED_WELL:
            raise SystemExit(f"{self.run.logdir} ended with code {code}: see {self.run.output}")
        seconds = round(time.time() - self.began, 1)
        line = {"began": round(self.began), "seconds": seconds, "side_by_side": side_by_side}
        with (self.run.notes / "sessions.jsonl").open("a") as sessions:
            sessions.write(json.dumps(line) + "\n")


def work(runs: Sequence[TrainingRun], *, parallel: int, minutes: float = math.inf) -> None:
    """Start runs as others end, until all are finished or the time is up; then the rest is stopped and may go on later.

    Finished runs are left as they are. The first that fails stops all others.
    """
    if parallel < 1:
        raise SystemExit(f"--parallel must be at least 1, got {parallel}")
    deadline = time.monotonic() + 60 * minutes
    waiting = [run for run in runs if not run.is_finished]
    side_by_side = min(parallel, len(waiting))
    working: list[_Session] = []
    # Whoever stops the benchmark stops its runs too, which save where they are.
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        while (waiting or working) and time.monotonic() < deadline:
            while waiting and len(working) < parallel:
                working.append(_Session.start(waiting.pop(0)))
            time.sleep(LOOK_EVERY_SECONDS)
            for session in [one for one in working if one.has_ended]:
                working.remove(session)
                session.note(side_by_side)
    finally:
        with ExitStack() as ends:  # all of them are waited for, whatever the first says
            for session in working:
                session.stop()
                ends.callback(session.note, side_by_side)
        signal.signal(signal.SIGTERM, before)


def curve_of(lines: Sequence[Line], *, digits: int = 1) -> list[list[float]]:
    """[frames, mean return of the training episodes that ended, number of these episodes]"""
    return [
        [line["env_frames"], round(line["collect/return_mean"], digits), line["collect/episodes"]]
        for line in lines
        if "collect/episodes" in line
    ]


def seconds_of(run: TrainingRun, lines: Sequence[Line]) -> Line:
    """Wall time of all processes, from their start to their end, and some of its parts."""
    took = [session["seconds"] for session in run.sessions()]
    learning = [line["wall_seconds"] for line in lines if line["updates"]]
    told = [line for line in lines if "time/evaluate" in line]
    kinds = ("evaluate", "checkpoint") if told else ()
    aside = {kind: round(told[-1][f"time/{kind}"] * told[-1]["wall_seconds"], 1) for kind in kinds}
    return {
        "processes": took,
        "all": round(sum(took), 1) if took else None,
        "before_the_first_line_with_updates": round(learning[0], 1) if learning else None,
        # Shares are those of one process: with several, nobody knows what the earlier ones spent.
        **(aside if len(took) == 1 else {}),
    }


def shares_of(lines: Sequence[Line]) -> Line:
    """Of the last process; ``learning`` is the device's time in updates over wall, in the median line that learned."""
    told = [line for line in lines if "time/env" in line]
    shares = {name[5:]: round(value, 4) for name, value in told[-1].items() if name.startswith("time/")} if told else {}
    learning = [line["time/learning"] for line in told[1:] if "time/learning" in line]
    return shares | ({"learning": round(statistics.median(learning), 4)} if learning else {})


def written(file: Path, new: Sequence[Line], *, about: Line, keys: Sequence[str]) -> list[Line]:
    """Write ``new`` among the runs of earlier times, and give them all. What has the same ``keys`` is replaced."""

    def key(run: Line) -> list[Any]:
        return [run[name] for name in keys]

    found = json.loads(file.read_text())["runs"] if file.exists() else []
    mine = [key(run) for run in new]
    runs = sorted([*new, *(run for run in found if key(run) not in mine)], key=key)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**about, "runs": runs}, indent=1) + "\n")
    return runs
