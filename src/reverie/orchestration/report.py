"""What is left when a run ends: a table, a learning curve, and the commands that come next."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from reverie.orchestration.command_name import reverie_command, tensorboard_command
from reverie.orchestration.logger import METRICS_FILE
from reverie.orchestration.panel import duration, number
from reverie.runtime.durable_files import replace_file
from reverie.types import ReverieError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVE_FILE = "learning_curve.png"
LOSS_PREFIX = "train/loss/"
MAX_LOSSES = 8
"""More lines than this in the lower panel could not be told apart."""

LINE_STYLES = ("solid", "dashed", "dashdot", "dotted")

Series = tuple[list[float], list[float]]
"""Environment frames, or updates where no step was taken, and the values seen there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """What a finished (or interrupted) run came to. None means that it never happened."""

    experiment: str
    task: str
    status: str
    agent_steps: int
    env_frames: int
    episodes: int
    updates: int
    wall_seconds: float
    score_now: float | None
    """Mean score of the last ten training episodes."""
    score_best: float | None
    evaluation: Mapping[str, float] = field(default_factory=dict)
    """The last evaluation, by its metric names without ``eval/``: ``return_mean``, ``return_std``, ``episodes``, ..."""
    logdir: str


def final_table(summary: Summary) -> RenderableType:
    table = Table(title=f"{summary.experiment} on {summary.task}: {summary.status}", box=box.SIMPLE, show_header=False)
    table.add_column(style="dim")
    table.add_column(justify="right", style="bold")
    table.add_row("agent steps", f"{summary.agent_steps:,}")
    table.add_row("environment frames", f"{summary.env_frames:,}")
    table.add_row("episodes", f"{summary.episodes:,}")
    table.add_row("updates", f"{summary.updates:,}")
    table.add_row("time", duration(summary.wall_seconds))
    table.add_row("training score, last 10 episodes", number(summary.score_now))
    table.add_row("training score, best", number(summary.score_best))
    if summary.evaluation:
        table.add_section()
    for name, value in summary.evaluation.items():
        table.add_row(f"evaluation {name.replace('_', ' ')}", f"{value:,.0f}" if name == "episodes" else number(value))
    table.add_section()
    table.add_row("run folder", Text(summary.logdir, overflow="fold"))
    return table


def closing_commands(logdir: str | Path, *, has_task: bool = True, trusted: Sequence[str] = ()) -> list[str]:
    """What to type next: evaluate, resume, look at the curves. Without a task of its own a run must be given one.

    ``trusted`` are the packages beside Reverie that opening the run imports.
    """
    task = () if has_task else ("--task", "TASK")
    allow = [word for package in trusted for word in ("--allow", package)]
    evaluate, resume = (reverie_command(name, logdir, *more, *allow) for name, more in (("eval", task), ("resume", ())))
    return [evaluate, resume, tensorboard_command(logdir)]


def read_metrics(path: Path) -> list[dict[str, float]]:
    """The lines of a ``metrics.jsonl``, all values as numbers. A last line that is still being written is left out."""
    text = path.read_bytes().decode("utf-8", errors="replace")
    lines: list[dict[str, float]] = []
    # The last piece is empty when the file ends with a whole line, and torn when it does not.
    for index, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            lines.append({name: float(value) for name, value in json.loads(line).items()})
        except (ValueError, TypeError, AttributeError) as error:
            raise ReverieError(f"{path} is damaged in line {index}: it must be a JSON object of numbers.") from error
    return lines


def learning_curve(folder: Path, *, say: Callable[[str], None] = print) -> Path | None:
    """Draw ``learning_curve.png`` from the run's metrics; None when there is nothing to draw yet.

    None too when files cannot be read or written: ``say`` is told why, for a picture must not cost the run's table.
    """
    try:
        return _drawn(folder)
    except OSError as error:
        say(f"No learning curve: {folder / CURVE_FILE} cannot be drawn ({error.strerror or error}).")
    except ReverieError as error:
        say(f"No learning curve: {error}")
    return None


def _drawn(folder: Path) -> Path | None:
    path = folder / METRICS_FILE
    lines = read_metrics(path) if path.exists() else []
    axis = "env_frames" if any(line["env_frames"] for line in lines) else "updates"
    returns, evaluations = _series(lines, axis, "collect/return_mean"), _series(lines, axis, "eval/return_mean")
    if not returns[0] and not evaluations[0]:
        return None
    losses = _losses(lines, axis)
    figure, axes = _figure(num_panels=2 if losses else 1)
    _draw_returns(axes[0], lines, axis, returns, evaluations)
    axes[0].set_title(folder.resolve().name, loc="left", fontsize=11, fontweight="bold")
    if losses:
        _draw_losses(axes[1], losses)
    axes[-1].set_xlabel("environment frames" if axis == "env_frames" else axis)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150)
    replace_file(folder / CURVE_FILE, [picture.getbuffer()])  # a full disk leaves the old picture, not half a new one
    return folder / CURVE_FILE


def _series(lines: list[dict[str, float]], axis: str, name: str) -> Series:
    """Where ``name`` has a finite value."""
    points = [(line[axis], line[name]) for line in lines if math.isfinite(line.get(name, math.nan))]
    return [frames for frames, _ in points], [value for _, value in points]


def _losses(lines: list[dict[str, float]], axis: str) -> dict[str, Series]:
    names = sorted({name for line in lines for name in line if name.startswith(LOSS_PREFIX)})
    found = {name.removeprefix(LOSS_PREFIX): _series(lines, axis, name) for name in names[:MAX_LOSSES]}
    return {name: series for name, series in found.items() if series[0]}


def _figure(*, num_panels: int) -> tuple[Figure, list[Axes]]:
    """A figure of its own: pyplot would keep global state and might look for a screen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import, and needed once per run
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    figure = Figure(figsize=(8, 4.2 if num_panels == 1 else 6), layout="constrained")
    FigureCanvasAgg(figure)
    ratios = [2.4, 1][:num_panels]
    grid = figure.subplots(num_panels, 1, sharex=True, squeeze=False, height_ratios=ratios)
    axes = list(grid[:, 0])
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25, linewidth=0.6)
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    return figure, axes


def _draw_returns(axes: Axes, lines: list[dict[str, float]], axis: str, returns: Series, evaluations: Series) -> None:
    if returns[0]:
        axes.plot(*returns, color="#8c6bb1", linewidth=1.4, label="training return")
    if evaluations[0]:
        _draw_band(axes, lines, axis)
        axes.plot(*evaluations, color="#d95f0e", linewidth=1.8, marker="o", markersize=4, label="evaluation")
    axes.set_ylabel("episode return")
    axes.legend(frameon=False, loc="best")


def _draw_band(axes: Axes, lines: list[dict[str, float]], axis: str) -> None:
    """The spread of the evaluations: lowest to highest return where both are known, else one standard deviation."""
    bands = [(line[axis], *_spread(line)) for line in lines if "eval/return_mean" in line]
    known = [band for band in bands if all(map(math.isfinite, band))]
    if known:
        frames, lows, highs = zip(*known, strict=True)
        axes.fill_between(frames, lows, highs, color="#d95f0e", alpha=0.15, linewidth=0)


def _spread(line: Mapping[str, float]) -> tuple[float, float]:
    """The lower and upper edge of the band at one evaluation; NaN where the line does not tell."""
    mean, deviation = line["eval/return_mean"], line.get("eval/return_std", math.nan)
    return line.get("eval/return_min", mean - deviation), line.get("eval/return_max", mean + deviation)


def _draw_losses(axes: Axes, losses: Mapping[str, Series]) -> None:
    for index, (name, series) in enumerate(losses.items()):
        # Some losses have equal values: below a thinner line, or one with gaps, both are seen.
        style, width = LINE_STYLES[index % len(LINE_STYLES)], 2.4 if index < len(LINE_STYLES) else 1.0
        axes.plot(*series, linewidth=width, linestyle=style, label=name)
    # Losses differ by orders of magnitude and some are negative; symlog shows them all.
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylabel("loss")
    axes.legend(
        frameon=False, fontsize=8, ncols=MAX_LOSSES // 2, loc="lower left", bbox_to_anchor=(0.0, 1.0), columnspacing=1.2
    )
