"""Pictures of benchmarks: a panel for each task, with returns over environment frames."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator


def panels(
    tasks: Sequence[str], *, size: tuple[float, float], columns: int, ylabel: str = "return of training episodes"
) -> tuple[Figure, list[tuple[str, Axes]]]:
    """``size`` is that of one panel, in inches; there are at most ``columns`` in a row."""
    in_a_row = min(columns, max(1, len(tasks)))
    rows = max(1, -(-len(tasks) // in_a_row))
    figure = Figure(figsize=(size[0] * in_a_row, size[1] * rows), layout="constrained")
    FigureCanvasAgg(figure)
    found = []
    for number, task in enumerate(tasks, start=1):
        axes = figure.add_subplot(rows, in_a_row, number)
        axes.set(xlabel="environment frames", ylabel=ylabel, title=task)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.spines[["top", "right"]].set_visible(False)
        found.append((task, axes))
    return figure, found
