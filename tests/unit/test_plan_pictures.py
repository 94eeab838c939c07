"""Plans as pictures: what is drawn where, from a made-up agent."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageSequence

from reverie.orchestration.pictures import CONTEXT_COLOUR, IMAGINED_COLOUR, coloured
from reverie.orchestration.plan_pictures import MAX_NUMBERS, plan_pictures
from reverie.types import Observation, Space, Spaces
from reverie.workflows.plans import Plans

ROWS, MOMENTS, PLANS, STEPS, SIZE = 12, 5, 3, 2, 32
SPACES = Spaces(
    obs={
        "image": Space(shape=(SIZE, SIZE, 3), dtype="uint8"),
        "position": Space(shape=(7,), dtype="float32"),
        "speed": Space(shape=(), dtype="float32"),
    },
    action=Space(shape=(2,), dtype="float32"),
)


def episode(*, is_terminal: bool = True) -> Observation:
    """Pictures as bright as the number of their row."""
    flags = torch.zeros(1, ROWS, dtype=torch.bool)
    ends = flags.clone()
    ends[0, -1] = is_terminal
    rows = torch.arange(ROWS)
    pictures = (rows * 20).to(torch.uint8).view(1, -1, 1, 1, 1).expand(-1, -1, SIZE, SIZE, 3)
    obs = {"image": pictures, "position": torch.randn(1, ROWS, 7), "speed": torch.randn(1, ROWS)}
    return Observation(obs=obs, reward=torch.ones(1, ROWS), is_first=flags, is_last=ends, is_terminal=ends)


def plans(*, brightness: float = 0.5) -> Plans:
    lead = (MOMENTS, PLANS, STEPS + 1)
    return Plans(
        row=torch.tensor([0, 2, 4, 7, 9]),
        rank=torch.tensor([0, 3, 7]),
        obs={
            "image": torch.full((*lead, SIZE, SIZE, 3), brightness),
            "position": torch.zeros(*lead, 7),
            "speed": torch.zeros(lead),
        },
        reward=torch.zeros(*lead[:2], STEPS),
        real_reward=torch.ones(ROWS),
        worth=torch.arange(15.0).view(MOMENTS, PLANS).flip(-1),
        discount=0.9,
    )


def decoded(data: bytes) -> tuple[np.ndarray, list[int]]:
    found = [
        (np.asarray(frame.convert("RGB")).astype(int), int(frame.info["duration"]))
        for frame in ImageSequence.Iterator(Image.open(io.BytesIO(data)))
    ]
    return np.stack([picture for picture, _ in found]), [duration for _, duration in found]


def near(pictures: np.ndarray, colour: Any) -> np.ndarray:
    return abs(pictures - np.array(colour)).max(-1) < 6


def test_a_video_has_a_frame_for_each_step_and_a_cell_for_each_plan() -> None:
    found = plan_pictures(plans(), episode(), SPACES, columns=3)
    assert set(found) == {"plans/image", "plans/lines"}
    frames, durations = decoded(found["plans/image"].data)
    assert frames.shape == (STEPS + 1, found["plans/image"].height, found["plans/image"].width, 3)
    assert durations == [600] * (STEPS + 1)
    expected = near(frames, (128, 128, 128)).sum((1, 2)) / (3 * PLANS * (4 * SIZE) ** 2)
    assert expected == pytest.approx(1.0, abs=0.02), "three moments, each with its plans, four times as large"
    for step, frame in enumerate(frames):
        came = [near(frame, [20 * (row + step)] * 3).sum() for row in (0, 4, 9)]
        assert all(count >= 0.95 * (4 * SIZE) ** 2 for count in came), "what came, in the rows that the plans speak of"
        assert bool(near(frame, CONTEXT_COLOUR).any()) == (step == 0)
        assert bool(near(frame, IMAGINED_COLOUR).any()) == (step > 0)


def test_the_plot_shows_returns_worth_and_numbers() -> None:
    picture = plan_pictures(plans(), episode(), SPACES, columns=2)["plans/lines"]
    image = np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB")).astype(int)
    assert image.shape == (picture.height, picture.width, 3)
    assert picture.width == 1000
    fewer = Spaces(obs={"speed": SPACES.obs["speed"]}, action=SPACES.action)
    little = plans()
    only = Plans(**{**{name: getattr(little, name) for name in Plans.__slots__}, "obs": {"speed": little.obs["speed"]}})
    small = plan_pictures(only, episode(), fewer, columns=2)["plans/lines"]
    step = (picture.height - small.height) / (MAX_NUMBERS - 1)
    assert step == pytest.approx(130, abs=1), "a panel for each number up to a limit, beside the reward"


def test_a_return_counts_as_known_where_little_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[Any] = []
    monkeypatch.setattr("reverie.orchestration.plan_pictures.plan_plot", lambda worth, *_, **__: met.append(worth))
    for is_terminal in (True, False):
        plan_pictures(plans(), episode(is_terminal=is_terminal), SPACES, columns=1)
    whole, cut = met
    by_hand = [sum(0.9**k for k in range(ROWS - 1 - row)) for row in range(ROWS)]
    assert whole.came == pytest.approx(by_hand)
    assert whole.is_known.all()
    assert not cut.is_known.any(), "0.9 ** 11 is more than a tenth"
    assert whole.planned[:, 0].tolist() == [2.0, 5.0, 8.0, 11.0, 14.0]


def test_stacked_colour_pictures_show_the_last_one() -> None:
    stacked = np.arange(2 * 2 * 9, dtype=np.uint8).reshape(2, 2, 9)
    assert np.array_equal(coloured(stacked), stacked[..., 6:])
    assert np.array_equal(coloured(stacked[..., :4]), np.repeat(stacked[..., 3:4], 3, axis=-1))
