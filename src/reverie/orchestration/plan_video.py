"""What plans expect to see, step by step, beside what came, as one animated GIF with words on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from reverie.orchestration.pictures import (
    CONTEXT_COLOUR,
    IMAGINED_COLOUR,
    Picture,
    animation,
    as_bytes,
    coloured,
)
from reverie.orchestration.plan_plots import Worth

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage
    from PIL.ImageDraw import ImageDraw

_FRAME_MILLISECONDS = 600
"""Plans are a few steps long, and there is something to read."""
_WANTED_HEIGHT = 112
"""Small pictures are enlarged to about this."""
_EDGE, _GAP, _LEFT, _TOP, _WORDS = 3, 10, 64, 26, 18
"""Pixels: the coloured edge, between cells, left of all for the row, above all, and below each cell for its worth."""
_INK, _PALE, _CAME_COLOUR, _PAPER = (34, 34, 34), (110, 110, 110), (150, 150, 150), (255, 255, 255)
_TEXT_SIZE = 12


def plan_video(
    came_MSHWC: np.ndarray, planned_MPSHWC: np.ndarray, worth: Worth, *, shown: Sequence[int], rank: Sequence[int]
) -> Picture:
    """One row for each ``shown`` moment: what came (uint8), then its plans (0 to 1); one frame for each step ahead.

    A blue edge marks the moment itself, which the agent has seen, an orange one what it expects.
    """
    from PIL import Image  # slow to import, and needed once per evaluation

    scale = max(1, round(_WANTED_HEIGHT / came_MSHWC.shape[2]))
    cells = np.concatenate([coloured(came_MSHWC)[:, None], coloured(as_bytes(planned_MPSHWC))], axis=1)
    cells = cells.repeat(scale, axis=-3).repeat(scale, axis=-2)
    titles = ["what came", *["best plan" if place == 0 else f"plan {place + 1}" for place in rank]]
    words = [_words(worth, one) for one in shown]
    rows = [f"row {worth.row[one]}" for one in shown]
    frames = [
        _frame(cells[:, :, step], titles=titles, rows=rows, words=words, step=step) for step in range(cells.shape[2])
    ]
    return animation(
        [frame.quantize(256, dither=Image.Dither.NONE) for frame in frames], milliseconds=_FRAME_MILLISECONDS
    )


def _frame(
    cells_MKHWC: np.ndarray, *, titles: Sequence[str], rows: Sequence[str], words: Sequence[Sequence[str]], step: int
) -> PilImage:
    from PIL import Image, ImageDraw

    moments, columns, height, width, _ = cells_MKHWC.shape
    across, down = width + 2 * _EDGE + _GAP, height + 2 * _EDGE + _WORDS + _GAP
    frame = Image.new("RGB", (_LEFT + columns * across, _TOP + moments * down), _PAPER)
    draw = ImageDraw.Draw(frame)
    for column, title in enumerate(titles):
        _write(draw, (_LEFT + column * across + _EDGE + width // 2, _TOP // 2), title, is_centred=True)
    for moment, row in enumerate(rows):
        top = _TOP + moment * down
        _write(draw, (8, top + height // 2 - 8), row)
        _write(draw, (8, top + height // 2 + 10), "now" if step == 0 else f"+{step}", is_pale=True)
        for column in range(columns):
            left = _LEFT + column * across
            colour = _CAME_COLOUR if column == 0 else CONTEXT_COLOUR if step == 0 else IMAGINED_COLOUR
            draw.rectangle((left, top, left + width + 2 * _EDGE - 1, top + height + 2 * _EDGE - 1), fill=colour)
            frame.paste(Image.fromarray(cells_MKHWC[moment, column]), (left + _EDGE, top + _EDGE))
            below = (left + _EDGE + width // 2, top + height + 2 * _EDGE + _WORDS // 2)
            _write(draw, below, words[moment][column], is_centred=True, is_pale=True)
    return frame


def _write(draw: ImageDraw, at: tuple[int, int], text: str, *, is_centred: bool = False, is_pale: bool = False) -> None:
    from PIL import ImageFont

    anchor = "mm" if is_centred else "lm"
    draw.text(at, text, fill=_PALE if is_pale else _INK, font=ImageFont.load_default(size=_TEXT_SIZE), anchor=anchor)


def _words(worth: Worth, moment: int) -> list[str]:
    """Below what came and below each plan."""
    row = int(worth.row[moment])
    came = f"return {_short(worth.came[row])}" if worth.is_known[row] else ""
    return [came, *[f"worth {_short(value)}" for value in worth.planned[moment].tolist()]]


def _short(number: float) -> str:
    return f"{round(float(number), 3):.4g}"
