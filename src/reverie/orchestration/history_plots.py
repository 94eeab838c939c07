"""The history of an algorithm as one PNG."""

from __future__ import annotations

import io

from reverie.orchestration.pictures import CONTEXT_COLOUR, Picture
from reverie.workflows.showing import History

_COLOURS = ("#0072b2", "#009e73", "#d55e00", "#666666")
_BAND = tuple(part / 255 for part in CONTEXT_COLOUR)


def history_plot(history: History, *, title: str) -> Picture:
    """All lines in one panel, and the spread around the first of them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), dpi=100, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panel = figure.subplots()
    for index, (name, values) in enumerate(history.lines.items()):
        if index == 0:
            low, high = values - history.spread, values + history.spread
            panel.fill_between(history.places, low, high, color=_BAND, alpha=0.18, lw=0)
        colour = _COLOURS[index % len(_COLOURS)]
        panel.plot(history.places, values, color=colour, linewidth=1.4, label=name, marker=".", markersize=3)
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_title(title, loc="left", fontsize=11, fontweight="bold")
    panel.set_xlabel(history.over)
    panel.legend(frameon=False, fontsize=8)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    width, height = canvas.get_width_height()
    return Picture(data=file.getvalue(), format="png", width=width, height=height)
