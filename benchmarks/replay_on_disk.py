"""Does a run with a million pictures in replay stay small when they are on disk, and does it start again quickly?

    python benchmarks/replay_on_disk.py [--rows 1000000] [--gigabytes 2] [--folder /tmp/on_disk]

A real `reverie train` with 64x64x3 pictures of noise, which no compression could make smaller, `buffer=disk_buffer`
and `size=debug`: it collects --rows rows, then collects and learns. The process may have --gigabytes of anonymous
memory and no more (RLIMIT_DATA: the system refuses what goes beyond it), and what it has is read four times a second.
Then the run is made longer and resumed under the same limit. Needs 13 GB of disk for a million rows; --folder is
removed at the end. Writes benchmarks/results/replay_on_disk.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reverie.orchestration.report import read_metrics

RESULTS = Path(__file__).parent / "results" / "replay_on_disk.json"
ENVIRONMENT = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Noise(gymnasium.Env):
    observation_space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = spaces.Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.picture(), {}

    def step(self, action):
        return self.picture(), 1.0, False, False, {}

    def picture(self):
        return np.frombuffer(self.np_random.bytes(64 * 64 * 3), np.uint8).reshape(64, 64, 3)


gymnasium.register("Noise-v0", entry_point="noisy_pictures:Noise", max_episode_steps=100)
"""
PHASES = (
    "[{{name: fill, type: online, buffer: replay, duration_steps: {rows}, workflow_hooks: [collect]}}, "
    "{{name: learn, type: online, buffer: replay, duration_steps: {learned}, train_ratio: 32, "
    "workflow_hooks: [collect, {{update: {{batch: {{size: 8, length: 32}}}}}}]}}]"
)
LEARNED = 480
"""Agent steps that the run learns from after it was filled, and again after it was resumed."""


@dataclass
class Watched:
    """One process from its start to its end. Sizes in bytes."""

    seconds: float = 0.0
    anonymous: list[int] = field(default_factory=list)
    """Memory that only swapping could free, as time went on."""

    @property
    def most(self) -> int:
        return max(self.anonymous)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "reverie-replay-on-disk")
    given = parser.parse_args()
    given.folder.mkdir(parents=True)
    try:
        result = measured(given.folder, rows=given.rows, limit=int(given.gigabytes * 2**30))
    finally:
        shutil.rmtree(given.folder)
    print(json.dumps(result, indent=1))
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")


def measured(folder: Path, *, rows: int, limit: int) -> dict[str, Any]:
    (folder / "noisy_pictures.py").write_text(ENVIRONMENT)
    run = folder / "run"
    settings = [
        "task=gym:noisy_pictures:Noise-v0",
        "size=debug",
        "buffer=disk_buffer",
        f"buffer.replay.capacity={rows}",
    ]
    settings += [
        "environment=gym",
        "environment.num_envs=16",
        "evaluation.every_steps=null",
        "logging.every_steps=1000",
    ]
    settings += [f"training.total_timesteps={rows + LEARNED}", f"checkpoint.every_steps={max(1, rows // 4)}"]
    settings += [f"training.phases={PHASES.format(rows=rows, learned=LEARNED)}", f"logdir={run}"]
    first = watched(["train", *settings], folder, limit)
    size = sum(path.stat().st_size for path in (run / "replay" / "replay").iterdir())
    before = read_metrics(run / "metrics.jsonl")
    longer = ["--allow", "noisy_pictures", f"training.phases.1.duration_steps={2 * LEARNED}"]
    second = watched(["resume", str(run), *longer], folder, limit)
    after = read_metrics(run / "metrics.jsonl")
    about = json.loads((run / "run.json").read_text())
    return {
        **{key: about[key] for key in ("hardware", "versions", "commit")},
        "python": platform.python_version(),
        "rows": rows,
        "limit_bytes": limit,
        "replay_bytes": size,
        "most_anonymous_bytes": first.most,
        "most_anonymous_bytes_in_each_quarter": quarters(first.anonymous),
        "most_anonymous_bytes_after_resume": second.most,
        "seconds": round(first.seconds),
        "updates": before[-1]["updates"],
        "updates_after_resume": after[-1]["updates"],
        "seconds_of_the_resumed_run": round(second.seconds),
    }


def watched(arguments: list[str], folder: Path, limit: int) -> Watched:
    """Run a command to its end; a failure is ours."""
    start, found = time.monotonic(), Watched()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(
        [sys.executable, "-m", "reverie", *arguments],
        cwd=folder,
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (limit, limit)),
    )
    while process.poll() is None:
        if (size := anonymous_bytes(process.pid)) is not None:
            found.anonymous.append(size)
        time.sleep(0.25)
    found.seconds = time.monotonic() - start
    if process.returncode != 0:
        raise SystemExit(f"reverie {arguments[0]} ended with code {process.returncode}: see above")
    return found


def anonymous_bytes(pid: int) -> int | None:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None  # it has just ended
    kibibytes = [int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
    return kibibytes[0] * 1024 if kibibytes else None


def quarters(sizes: list[int]) -> list[int]:
    """Steady memory has about the same maximum in each."""
    cuts = [len(sizes) * part // 4 for part in range(5)]
    return [max(sizes[first:last], default=0) for first, last in itertools.pairwise(cuts)]


if __name__ == "__main__":
    main()
