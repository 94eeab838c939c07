"""Truth, prediction and error of picture sequences as one animated GIF."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image as PilImage

_RGB = 3

CONTEXT_COLOUR = (0, 114, 178)
"""Blue: the model has seen this row."""
IMAGINED_COLOUR = (230, 97, 0)
"""Orange: the model has not. Blue and orange are told apart by nearly all eyes."""
BORDER = 2
"""Pixels of colour around each picture, before it is enlarged."""
FRAME_MILLISECONDS = 100
_WANTED_HEIGHT = 64
"""Small pictures are enlarged to about this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """An encoded file, ready to be written, sent and shown."""

    data: bytes
    format: Literal["gif", "png"]
    width: int
    height: int


def video(truth_BTHWC: np.ndarray, predicted_BTHWC: np.ndarray, is_context_BT: np.ndarray) -> Picture:
    """One column per sequence; above the truth (uint8), then the prediction (0 to 1), below the error, grey where none.

    Frames that are equal to the one before are stored as a longer pause, not as frames.
    """
    frames = mosaic(truth_BTHWC, predicted_BTHWC, is_context_BT)
    return _animated(frames, scale=max(1, _WANTED_HEIGHT // truth_BTHWC.shape[2]))


def _animated(frames: np.ndarray, *, scale: int) -> Picture:
    from PIL import Image  # slow to import, and needed once per evaluation

    size = (frames.shape[2] * scale, frames.shape[1] * scale)
    palettes = [Image.fromarray(frame).quantize(256, dither=Image.Dither.NONE) for frame in frames]
    return animation([frame.resize(size, Image.Resampling.NEAREST) for frame in palettes], FRAME_MILLISECONDS)


def animation(frames: Sequence[PilImage], milliseconds: int) -> Picture:
    """Frames of one size, with 256 colours each, one after the other and again from the start."""
    first, *others = frames
    file = io.BytesIO()
    first.save(file, "GIF", save_all=True, append_images=others, duration=milliseconds, loop=0)
    return Picture(data=file.getvalue(), format="gif", width=first.width, height=first.height)


def film(pictures_BTHWC: np.ndarray) -> Picture:
    """Pictures from 0 to 1, one column per sequence, all of them imagined."""
    imagined = np.zeros(pictures_BTHWC.shape[:2], bool)
    colours = np.where(imagined[..., None], CONTEXT_COLOUR, IMAGINED_COLOUR).astype(np.uint8)
    frames = _columns(_bordered(coloured(as_bytes(pictures_BTHWC)), colours))
    return _animated(frames, scale=max(1, _WANTED_HEIGHT // pictures_BTHWC.shape[2]))


def mosaic(truth_BTHWC: np.ndarray, predicted_BTHWC: np.ndarray, is_context_BT: np.ndarray) -> np.ndarray:
    """The frames [T, height, width, 3], every picture with a border in the colour of its row."""
    truth, predicted = coloured(truth_BTHWC), coloured(as_bytes(predicted_BTHWC))
    error = as_bytes((predicted.astype(np.float32) - truth.astype(np.float32)) / 255 / 2 + 0.5)
    colour_BTC = np.where(is_context_BT[..., None], CONTEXT_COLOUR, IMAGINED_COLOUR).astype(np.uint8)
    rows = [_columns(_bordered(one, colour_BTC)) for one in (truth, predicted, error)]
    return np.concatenate(rows, axis=1)


def as_bytes(values: np.ndarray) -> np.ndarray:
    """From 0 to 1, what is beyond cut off, to uint8."""
    return (values.clip(0, 1) * 255).round().astype(np.uint8)


def coloured(pictures: np.ndarray) -> np.ndarray:
    """Three channels. Of moments behind each other the last one is shown: in colour, where all have three channels."""
    channels = pictures.shape[-1]
    return pictures[..., -_RGB:] if channels % _RGB == 0 else np.repeat(pictures[..., -1:], _RGB, axis=-1)


def _bordered(pictures_BTHWC: np.ndarray, colour_BTC: np.ndarray) -> np.ndarray:
    batch, time, height, width, channels = pictures_BTHWC.shape
    framed = np.empty((batch, time, height + 2 * BORDER, width + 2 * BORDER, channels), np.uint8)
    framed[:] = colour_BTC[:, :, None, None]
    framed[:, :, BORDER:-BORDER, BORDER:-BORDER] = pictures_BTHWC
    return framed


def _columns(pictures_BTHWC: np.ndarray) -> np.ndarray:
    """[T, H, B * W, C]"""
    return np.concatenate(list(pictures_BTHWC), axis=2)
