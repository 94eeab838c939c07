"""How the progress of a run is drawn: as a panel for a terminal, or as one plain line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from rich.columns import Columns
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

SPARKS = "▁▂▃▄▅▆▇█"
SHARE_COLOURS = {
    "env": "green",
    "policy": "cyan",
    "replay": "yellow",
    "update": "magenta",
    "evaluate": "blue",
    "checkpoint": "red",
    "idle": "bright_black",
    "other": "bright_black",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Where a run stands at one moment. None means: not known, or not yet."""

    experiment: str
    task: str
    phase: str
    phase_index: int
    """Counts from 0."""
    num_phases: int
    agent_steps: int
    total_steps: int | None
    total_updates: int | None = None
    """Where nothing is collected: then updates are what progresses."""
    env_frames: int
    episodes: int
    score_now: float | None
    """Mean score of the last ten episodes."""
    score_best: float | None
    updates: int
    updates_per_second: float
    frames_per_second: float
    seconds_left: float | None
    shares: Mapping[str, float] = field(default_factory=dict)
    """Fraction of the time by kind of work; the kinds are the keys of ``SHARE_COLOURS``."""
    logdir: str
    last_eval: float | None

    @property
    def fraction(self) -> float | None:
        if self.total_steps:
            return min(1.0, self.agent_steps / self.total_steps)
        return min(1.0, self.updates / self.total_updates) if self.total_updates else None


def progress_panel(progress: Progress, scores: list[float]) -> RenderableType:
    """The whole panel. ``scores`` are drawn as a sparkline, oldest first."""
    name = Text.assemble(
        ("Reverie  ", "bold magenta"), (progress.experiment, "bold default"), (f" on {progress.task}", "default")
    )
    body = Group(
        _progress_rows(progress), Text(), _facts(progress), Text(), _Sparkline(scores), _ShareBar(progress.shares)
    )
    panel = Panel(
        body,
        title=name,
        title_align="left",
        subtitle=Text(progress.logdir, style="dim"),
        subtitle_align="right",
        border_style="bright_black",
        padding=(1, 2),
    )
    return Constrain(panel, width=100)


def _progress_rows(progress: Progress) -> RenderableType:
    total, left = progress.total_steps, progress.seconds_left
    steps = f"{progress.agent_steps:,}" + (f" of {total:,}" if total else "") + " steps"
    if progress.total_updates:
        steps = f"{progress.updates:,} of {progress.total_updates:,} updates"
    phase = Text.assemble(
        (progress.phase, "bold"), (f"  phase {progress.phase_index + 1}/{progress.num_phases}", "dim")
    )
    heading = Table.grid(expand=True, padding=(0, 0, 0, 2))
    heading.add_column(ratio=1, no_wrap=True)
    heading.add_column(justify="right", no_wrap=True)
    heading.add_row(phase, steps)
    bar = Table.grid(expand=True, padding=(0, 0, 0, 2))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", min_width=5, no_wrap=True)
    bar.add_column(justify="right", min_width=9, no_wrap=True)
    # Without a known end the bar stays empty: a pulse would need redraws of its own.
    drawn = ProgressBar(total=1.0, completed=progress.fraction or 0.0, complete_style="magenta", finished_style="green")
    percent = "" if progress.fraction is None else f"{progress.fraction:.0%}"
    bar.add_row(drawn, percent, "" if left is None else f"{duration(left)} left")
    return Group(heading, bar)


def _facts(progress: Progress) -> RenderableType:
    facts = {
        "score": number(progress.score_now),
        "episodes": f"{progress.episodes:,}",
        "updates": f"{progress.updates:,}",
        "best": number(progress.score_best),
        "frames": f"{progress.env_frames:,}",
        "updates/s": number(progress.updates_per_second),
        "evaluation": number(progress.last_eval),
        "frames/s": number(progress.frames_per_second),
    }
    cells = [Text.assemble((f"{name:<11}", "dim"), (value, "bold")) for name, value in facts.items()]
    return Columns(cells, width=22, padding=(0, 2))  # a fixed width, so that growing numbers move nothing


@dataclass(frozen=True, slots=True)
class _Sparkline:
    """The scores as one line, as wide as there is room."""

    scores: list[float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.scores:
            yield Text(sparkline(self.scores, options.max_width), style="green", no_wrap=True)
            yield Text(f"score from {number(min(self.scores))} to {number(max(self.scores))}", style="dim")
            yield Text()


@dataclass(frozen=True, slots=True)
class _ShareBar:
    """Where the time goes: one coloured bar and its legend. Host and device work at once, so it may be over 100%."""

    shares: Mapping[str, float]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        total = sum(self.shares.values())
        if total <= 0:
            return
        bar, edge, spent = Text(no_wrap=True), 0, 0.0
        legend: list[RenderableType] = []
        for name, share in self.shares.items():
            spent += share / total
            next_edge = round(spent * options.max_width)
            colour = SHARE_COLOURS.get(name, "white")
            bar.append("━" * (next_edge - edge), style=colour)
            edge = next_edge
            if share >= 0.005:
                legend.append(Text.assemble(("● ", colour), (f"{name} {share:.0%}", "dim")))
        yield bar
        yield Columns(legend, padding=(0, 2))


def plain_line(progress: Progress) -> str:
    """The same facts as the panel on one line of ASCII."""
    fraction = progress.fraction
    parts = [
        f"[{progress.phase} {progress.phase_index + 1}/{progress.num_phases}]",
        f"step {progress.agent_steps:,}"
        + (f" of {progress.total_steps:,} ({fraction:.0%})" if progress.total_steps and fraction is not None else ""),
        f"frames {progress.env_frames:,}",
        f"episodes {progress.episodes:,}",
        f"score {number(progress.score_now)} (best {number(progress.score_best)})",
        f"updates {progress.updates:,}"
        + (
            f" of {progress.total_updates:,} ({fraction:.0%})"
            if progress.total_updates and fraction is not None
            else ""
        ),
        f"{progress.updates_per_second:.1f} updates/s",
        f"{progress.frames_per_second:.1f} frames/s",
    ]
    if progress.last_eval is not None:
        parts.append(f"eval {number(progress.last_eval)}")
    if progress.seconds_left is not None:
        parts.append(f"{duration(progress.seconds_left)} left")
    parts += [f"{name} {share:.0%}" for name, share in progress.shares.items() if share >= 0.005]
    return "  ".join(parts)


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.1f}"


def duration(seconds: float) -> str:
    """``4:05`` or ``1:04:05``."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def sparkline(values: list[float], width: int) -> str:
    """``values`` as at most ``width`` little bars, the lowest and the highest value filling the range."""
    points = neighbour_means(values, width) if len(values) > width else values
    if not points:
        return ""
    low, high = min(points), max(points)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((point - low) * scale)] for point in points)


def neighbour_means(values: list[float], count: int) -> list[float]:
    """``values`` in ``count`` groups of neighbours, each replaced by its mean; ``count`` is at most their number."""
    edges = [round(index * len(values) / count) for index in range(count + 1)]
    return [sum(values[start:end]) / (end - start) for start, end in pairwise(edges)]
