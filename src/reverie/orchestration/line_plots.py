"""Numbers over time, real and predicted, as one PNG."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reverie.orchestration.pictures import CONTEXT_COLOUR, IMAGINED_COLOUR, Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRUTH_STYLE = {"color": "#222222", "linewidth": 1.6, "label": "real"}
PREDICTED_STYLE = {"color": tuple(part / 255 for part in IMAGINED_COLOUR), "linewidth": 1.2, "label": "predicted"}
_SHADE = tuple(part / 255 for part in CONTEXT_COLOUR)
DOTS_PER_INCH = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One number of every row, as it was and as it was predicted."""

    name: str
    truth: np.ndarray
    """[B, T]"""
    predicted: np.ndarray


def line_plot(lines: Sequence[Line], is_context_BT: np.ndarray, *, title: str) -> Picture:
    """One panel per line; the sequences stand side by side in it, and rows that the model has seen are shaded."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # slow to import
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 1.0 + 1.1 * len(lines)), dpi=DOTS_PER_INCH, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    panels: list[Axes] = list(figure.subplots(len(lines), 1, sharex=True, squeeze=False)[:, 0])
    for panel, line in zip(panels, lines, strict=True):
        _draw(panel, line, is_context_BT)
    panels[0].set_title(title, loc="left", fontsize=11, fontweight="bold")
    panels[0].legend(frameon=False, fontsize=8, ncols=3, loc="lower right", bbox_to_anchor=(1.0, 1.0))
    panels[-1].set_xlabel("agent steps, the sequences side by side")
    file = io.BytesIO()
    figure.savefig(file, format="png")
    width, height = canvas.get_width_height()
    return Picture(data=file.getvalue(), format="png", width=width, height=height)


def _draw(panel: Axes, line: Line, is_context_BT: np.ndarray) -> None:
    panel.spines[["top", "right"]].set_visible(False)
    panel.set_ylabel(line.name, rotation=0, ha="right", va="center", fontsize=8)
    panel.tick_params(labelsize=7)
    panel.plot(_side_by_side(line.truth), **TRUTH_STYLE)
    panel.plot(_side_by_side(line.predicted), **PREDICTED_STYLE)
    for number, (start, stop) in enumerate(_runs(_side_by_side(is_context_BT) == 1)):
        panel.axvspan(start - 0.5, stop - 0.5, color=_SHADE, alpha=0.18, lw=0, label=None if number else "seen")


def _side_by_side(values_BT: np.ndarray) -> np.ndarray:
    """One axis; a gap, which is not a number, after each sequence."""
    gap = np.full((len(values_BT), 1), np.nan)
    return np.concatenate([values_BT.astype(np.float64), gap], axis=1).ravel()


def _runs(is_on: np.ndarray) -> list[tuple[int, int]]:
    """Where it is on without a break: start and stop of each run."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], is_on, [False]]).astype(np.int8)))
    return [(int(start), int(stop)) for start, stop in edges.reshape(-1, 2)]
