"""Files that show predictions: decoded again, they hold what was put in."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageSequence

from reverie.orchestration.line_plots import Line, line_plot
from reverie.orchestration.pictures import BORDER, CONTEXT_COLOUR, FRAME_MILLISECONDS, IMAGINED_COLOUR, mosaic, video

COLUMNS, TIME, SIZE = 3, 7, 64


def pictures(channels: int = 3) -> np.ndarray:
    """Few colours, so that a GIF keeps them as they are; no two frames are equal."""
    truth = np.zeros((COLUMNS, TIME, SIZE, SIZE, channels), np.uint8)
    for column in range(COLUMNS):
        for step in range(TIME):
            truth[column, step, 8 * column : 8 * column + 8, 8 * step : 8 * step + 8, step % channels] = 200
    return truth


def seen_rows() -> np.ndarray:
    is_context = np.zeros((COLUMNS, TIME), bool)
    is_context[:, :2] = True
    is_context[1, 4] = True
    return is_context


def decoded(data: bytes) -> np.ndarray:
    frames = ImageSequence.Iterator(Image.open(io.BytesIO(data)))
    return np.stack([np.asarray(frame.convert("RGB")) for frame in frames])


def tile(frames: np.ndarray, row: int, column: int) -> np.ndarray:
    """One picture over time, with its border."""
    step = SIZE + 2 * BORDER
    return frames[:, row * step : (row + 1) * step, column * step : (column + 1) * step]


def inside(tiles: np.ndarray) -> np.ndarray:
    return tiles[:, BORDER:-BORDER, BORDER:-BORDER]


def test_a_video_holds_truth_prediction_and_error_with_coloured_borders() -> None:
    truth, is_context = pictures(), seen_rows()
    predicted = np.where(truth > 0, 0.5, 0.0).astype(np.float32)
    picture = video(truth, predicted, is_context)
    frames = decoded(picture.data)
    assert frames.shape == (TIME, picture.height, picture.width, 3)
    assert (picture.height, picture.width) == (3 * (SIZE + 2 * BORDER), COLUMNS * (SIZE + 2 * BORDER))
    for column in range(COLUMNS):
        assert np.array_equal(inside(tile(frames, 0, column)), truth[column])
        assert np.array_equal(inside(tile(frames, 1, column)), (truth[column] > 0) * np.uint8(128))
        error = inside(tile(frames, 2, column))
        assert np.array_equal(error, np.where(truth[column] > 0, 128 - 36, 128))
        for row in range(3):
            colours = tile(frames, row, column)[:, 0, 0]
            expected = np.where(is_context[column][:, None], CONTEXT_COLOUR, IMAGINED_COLOUR)
            assert np.array_equal(colours, expected)


def test_a_video_plays_at_ten_frames_a_second_and_repeats() -> None:
    picture = video(pictures(), pictures() / np.float32(255), seen_rows())
    file = Image.open(io.BytesIO(picture.data))
    assert file.info["loop"] == 0
    durations = [frame.info["duration"] for frame in ImageSequence.Iterator(file)]
    assert durations == [FRAME_MILLISECONDS] * TIME


def test_a_scene_that_stands_still_lasts_as_long() -> None:
    still = np.repeat(pictures()[:, :1], TIME, axis=1)
    picture = video(still, still / np.float32(255), np.ones((COLUMNS, TIME), bool))
    durations = [frame.info["duration"] for frame in ImageSequence.Iterator(Image.open(io.BytesIO(picture.data)))]
    assert sum(durations) == FRAME_MILLISECONDS * TIME


@pytest.mark.parametrize("channels", [1, 4])
def test_pictures_without_three_channels_are_grey_and_show_the_last(channels: int) -> None:
    truth = pictures(channels)
    frames = mosaic(truth, truth / np.float32(255), seen_rows())
    for column in range(COLUMNS):
        shown = inside(tile(frames, 0, column))
        assert np.array_equal(shown, np.repeat(truth[column][..., -1:], 3, axis=-1))


def test_predictions_beyond_black_and_white_are_cut() -> None:
    truth = pictures()
    frames = mosaic(truth, np.full(truth.shape, 1.7, np.float32), seen_rows())
    assert (inside(tile(frames, 1, 0)) == 255).all()
    assert (inside(tile(mosaic(truth, np.full(truth.shape, -3.0), seen_rows()), 1, 0)) == 0).all()


def test_small_pictures_are_enlarged() -> None:
    truth = pictures()[:, :, ::4, ::4]
    picture = video(truth, truth / np.float32(255), seen_rows())
    assert picture.height == 3 * (16 + 2 * BORDER) * 4
    assert np.array_equal(decoded(picture.data)[:, ::4, ::4], mosaic(truth, truth / np.float32(255), seen_rows()))


def test_lines_are_drawn_in_their_places() -> None:
    """The prediction stays at the bottom, so the top of the panel has the colour of the context or none."""
    is_context = np.zeros((2, 20), bool)
    is_context[:, :10] = True
    truth = np.tile(np.linspace(0, 1, 20), (2, 1))
    lines = [Line(name=name, truth=truth, predicted=np.zeros((2, 20))) for name in ("a", "b")]
    picture = line_plot(lines, is_context, title="open loop")
    image = np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB")).astype(int)
    assert image.shape == (picture.height, picture.width, 3)
    is_orange = image[..., 0] - image[..., 2] > 60
    shade = 255 - 0.18 * (255 - np.array(CONTEXT_COLOUR))
    is_shaded = abs(image - shade).max(-1) < 3
    assert (is_orange.sum(1) > 300).sum() >= 2, "each panel has a level orange line"
    # Half of each sequence is shaded, in both panels: two stripes, each a quarter of the panel's width.
    stripes = is_shaded.sum(0) > 20
    assert np.count_nonzero(np.diff(stripes.astype(int)) == 1) >= 2
    assert 0.35 < stripes.mean() < 0.55
