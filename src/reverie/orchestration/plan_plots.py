"""The numbers of plans beside those that came, as one PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reverie.orchestration.line_plots import DOTS_PER_INCH, PREDICTED_STYLE, TRUTH_STYLE
from reverie.orchestration.pictures import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CAME_STYLE: dict[str, Any] = {**TRUTH_STYLE, "marker": "o", "markersize": 3}
_BEST_STYLE: dict[str, Any] = {**PREDICTED_STYLE, "marker": "o", "markersize": 3, "label": "best plan"}
_OTHER_STYLE: dict[str, Any] = {**PREDICTED_STYLE, "alpha": 0.35, "linewidth": 1.0}


@dataclass(frozen=True, kw_only=True, slots=True)
class Worth:
    """What plans are said to be worth, and the discounted return that came."""

    row: np.ndarray
    """[M]: where in the episode the plans were made."""
    planned: np.ndarray
    """[M, P], the best first."""
    came: np.ndarray
    """[T]: behind every row of the episode, within the rows that are shown."""
    is_known: np.ndarray
    """[T]: whether little of it lies beyond them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedNumber:
    """One number along the plans of some moments."""

    name: str
    first_step: int
    """How far ahead its first value lies: rewards are paid on arrival, but what is seen begins with the moment."""
    came: np.ndarray
    """[M, S]"""
    planned: np.ndarray
    """[M, P, S]"""


def plan_plot(worth: Worth, numbers: Sequence[PlannedNumber], *, shown: Sequence[int]) -> Picture:
    """Above the worth of plans along the episode; below every number along the plans of each ``shown`` moment."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2 + 1.3 * len(numbers)), dpi=DOTS_PER_INCH, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    grid = figure.add_gridspec(1 + len(numbers), len(shown), height_ratios=[2.0, *[1.0] * len(numbers)])
    _draw_worth(figure.add_subplot(grid[0, :]), worth, shown)
    for place, number in enumerate(numbers):
        first: Axes | None = None
        for column, moment in enumerate(shown):
            panel = figure.add_subplot(grid[1 + place, column], sharey=first)
            first = first or panel
            _draw_number(panel, number, column, is_first=column == 0, is_last=place == len(numbers) - 1)
            if place == 0:
                panel.set_title(f"at row {worth.row[moment]}", fontsize=9)
    file = io.BytesIO()
    figure.savefig(file, format="png")
    width, height = canvas.get_width_height()
    return Picture(data=file.getvalue(), format="png", width=width, height=height)


def _draw_worth(panel: Axes, worth: Worth, shown: Sequence[int]) -> None:
    rows = np.arange(len(worth.came))
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=7)
    panel.plot(rows, np.where(worth.is_known, worth.came, np.nan), **{**TRUTH_STYLE, "label": "return that came"})
    if not worth.is_known.all():
        cut = {**TRUTH_STYLE, "linestyle": ":", "linewidth": 1.0, "label": "what these rows hold of it"}
        panel.plot(rows, np.where(worth.is_known, np.nan, worth.came), **cut)
    spread = {"color": _OTHER_STYLE["color"], "alpha": _OTHER_STYLE["alpha"], "linewidth": 3}
    panel.vlines(worth.row, worth.planned.min(1), worth.planned.max(1), **spread, label="worth of other plans")
    panel.plot(worth.row, worth.planned[:, 0], **{**_BEST_STYLE, "linewidth": 0, "label": "worth of the best plan"})
    for moment in shown:
        panel.axvline(worth.row[moment], color="#bbbbbb", linewidth=0.8, linestyle="--", zorder=0)
    panel.set_title("plans", loc="left", fontsize=11, fontweight="bold")
    panel.legend(frameon=False, fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    panel.set_xlabel("row of the episode", fontsize=8)
    panel.set_ylabel("worth", fontsize=8)


def _draw_number(panel: Axes, number: PlannedNumber, column: int, *, is_first: bool, is_last: bool) -> None:
    came, planned = number.came[column], number.planned[column]
    steps = number.first_step + np.arange(planned.shape[-1])
    panel.spines[["top", "right"]].set_visible(False)
    panel.tick_params(labelsize=7, labelleft=is_first, labelbottom=is_last)
    for other in planned[1:]:
        panel.plot(steps, other, **_OTHER_STYLE)
    panel.plot(steps, came, **_CAME_STYLE)
    panel.plot(steps, planned[0], **_BEST_STYLE)
    if is_first:
        panel.set_ylabel(number.name, rotation=0, ha="right", va="center", fontsize=8)
    panel.set_xticks(range(steps[-1] + 1))
    panel.set_xlim(-0.15, steps[-1] + 0.15)  # rewards stand below the step at which they arrive
    if is_last:
        panel.set_xlabel("steps ahead", fontsize=8)
