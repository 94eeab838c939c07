"""Atari: the emulator's own frames and points, the presets of the papers, and games that come back bit for bit."""

from __future__ import annotations

import sys
from typing import Any

import ale_py
import cv2
import numpy as np
import pytest
from ale_py import roms
from atari_games import env, played_frames, preset, walk
from PIL import Image

from reverie.environments.atari import _ATARI_100K, AtariEnvironment, task_info, task_names
from reverie.environments.atari_console import FIRE, NOOP
from reverie.types import ReverieError, Space

STARTUP_FRAMES = 3


def bare(game: str) -> ale_py.ALEInterface:
    """The emulator without anything around it, where our episodes begin."""
    ale = ale_py.ALEInterface()
    ale.setFloat("repeat_action_probability", 0.0)
    ale.loadROM(roms.get_rom_path(game))
    ale.reset_game()
    for _ in range(STARTUP_FRAMES):
        ale.act(NOOP)
    return ale


def test_gray_pictures_and_points_are_those_of_the_emulator() -> None:
    """The formulas of the DreamerV3 code, written a second time."""
    one, ale = env("ms_pacman", sticky=0.0, noops=0), bare("ms_pacman")
    screens = [ale.getScreenRGB()] * 2
    actions = np.random.default_rng(0).integers(0, 18, 100)
    seen = [one.reset(0)]
    expected_reward = [0.0]
    expected = [gray_96(screens)]
    for action in actions:
        points = 0
        for _ in range(4):
            points += ale.act(int(action))
            screens = [screens[-1], ale.getScreenRGB()]
        expected.append(gray_96(screens))
        expected_reward.append(points)
        seen.append(one.step(action))
    assert [step.reward for step in seen] == expected_reward
    assert max(expected_reward) >= 10  # points, not their signs
    for step, image in zip(seen, expected, strict=True):
        assert np.array_equal(step.obs["image"], image)


def gray_96(screens: list[np.ndarray]) -> np.ndarray:
    pooled = np.amax(screens, axis=0)
    small = np.array(Image.fromarray(pooled).resize((96, 96), Image.Resampling.BILINEAR))
    weights = np.array([0.299, 0.587, 1 - (0.299 + 0.587)])
    return (small * weights).sum(-1).astype(np.uint8)[..., None]


def test_area_pictures_are_those_of_opencv() -> None:
    one, ale = env(size=(64, 48), is_gray=False, resize="area", has_max_pool=False, sticky=0.0, noops=0), bare("pong")
    image = cv2.resize(ale.getScreenRGB(), (48, 64), interpolation=cv2.INTER_AREA)
    assert np.array_equal(one.reset(0).obs["image"], image)


def test_the_preset_atari_is_that_of_dreamer() -> None:
    one = env(**preset("atari"))
    assert one.spaces.obs == {"image": Space(shape=(96, 96, 1), dtype="uint8")}
    assert one.spaces.action == Space(shape=(), dtype="int64", classes=18)
    assert (one.frames_per_step, one.episode_steps) == (4, 27_000)
    assert (one._sticky, one._noops, one._picture.pool, one._is_life_terminal) == (0.25, 30, 2, False)


def test_the_preset_atari100k_is_that_of_dreamer() -> None:
    one = env(**preset("atari100k"))
    assert one.spaces.obs == {"image": Space(shape=(64, 64, 3), dtype="uint8")}
    assert one.spaces.action.classes == 6
    assert (one._sticky, one._noops, one.frames_per_step, one.episode_steps) == (0.0, 30, 4, 27_000)


def test_the_preset_simple_stacks_half_screens_that_begin_as_zeros() -> None:
    options = {**preset("atari_simple"), "noops": 0, "has_fire_reset": False}
    one, ale = env(**options), bare("pong")
    assert one.spaces.obs == {"image": Space(shape=(105, 80, 12), dtype="uint8")}
    assert one.episode_steps == 18_000
    halves = [np.zeros((105, 80, 3), np.uint8)] * 3 + [ale.getScreenRGB()[::2, ::2]]
    assert np.array_equal(one.reset(0).obs["image"], np.concatenate(halves, -1))
    known = [action.value for action in ale.getMinimalActionSet()]
    for index in (2, 3, 2, 0, 5):
        for _ in range(4):
            ale.act(known[index])
        halves = [*halves[1:], ale.getScreenRGB()[::2, ::2]]  # the last frame, not a maximum
        assert np.array_equal(one.step(np.array(index)).obs["image"], np.concatenate(halves, -1))


def test_fire_is_pressed_at_the_beginning_where_the_game_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    options = preset("atari_simple") | {"noops": 0}
    one = env("breakout", **options)
    frames = played_frames(one, monkeypatch)
    one.reset(0)
    assert frames == [FIRE] * 4 + [3] * 4
    other = env("freeway", **options)
    frames = played_frames(other, monkeypatch)
    other.reset(0)
    assert frames == []


def test_the_number_of_noops_is_drawn_from_zero_to_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    one = env(noops=4)
    frames = played_frames(one, monkeypatch)
    counts = []
    for seed in range(60):
        frames.clear()
        one.reset(seed)
        assert not any(frames)
        counts.append(len(frames))
    assert set(counts) == {0, 1, 2, 3, 4}


def test_a_sticky_frame_repeats_the_action_before(monkeypatch: pytest.MonkeyPatch) -> None:
    one = env(sticky=0.25, noops=0, action_repeat=1)
    frames = played_frames(one, monkeypatch)
    one.reset(1)
    chosen = [2 + index % 2 for index in range(800)]
    for action in chosen:
        one.step(np.array(action))
    pairs = list(zip(chosen, frames, [NOOP, *frames], strict=False))
    assert all(now in (wanted, before) for wanted, now, before in pairs)
    share = np.mean([now != wanted for wanted, now, _ in pairs])
    # A frame differs from its choice where the draw stuck and the action before was another: p (1 - s) = s.
    assert abs(share - 0.2) < 0.06
    frozen = env(sticky=1.0, noops=0)
    frames = played_frames(frozen, monkeypatch)
    frozen.reset(0)
    walk(frozen, 5)
    assert set(frames) == {NOOP}


def test_a_time_limit_is_last_but_not_terminal() -> None:
    one = env(max_frames=38)
    one.reset(0)
    seen = walk(one, 10)
    assert [step.is_last for step in seen] == [False] * 9 + [True]
    assert not any(step.is_terminal for step in seen)


def test_a_lost_game_is_terminal_and_a_lost_life_only_on_request() -> None:
    """Breakout with five balls that nobody returns."""
    fire, wait = np.array(FIRE), np.array(NOOP)
    one = env("breakout", sticky=0.0, noops=0)
    one.reset(0)
    flags = []
    while not flags or not flags[-1].is_last:
        flags.append(one.step(fire if len(flags) % 2 else wait))
    assert flags[-1].is_terminal
    assert not any(step.is_terminal for step in flags[:-1])
    assert one._console.lives == 0
    strict = env("breakout", sticky=0.0, noops=0, lives="terminal")
    strict.reset(0)
    lives = [strict.step(fire if index % 2 else wait) for index in range(len(flags) // 2)]
    first = next(index for index, step in enumerate(lives) if step.is_last)
    assert lives[first].is_terminal
    assert strict.reset(1).is_first
    assert strict._console.lives == 5  # a new game


def test_observations_belong_to_the_caller() -> None:
    for options in ({}, {"frame_stack": 2}, {"is_gray": False, "resize": "nearest"}):
        one = env(**options)
        first = one.reset(0).obs["image"]
        kept = first.copy()
        walk(one, 15)
        assert np.array_equal(first, kept)
        assert first.flags.writeable


def test_all_games_for_one_player_are_tasks() -> None:
    names = task_names()
    assert len(names) == len(set(names)) >= 104
    assert {f"atari_{game}" for game in _ATARI_100K.split()} < set(names)
    assert len(_ATARI_100K.split()) == 26
    info = task_info("atari_pong")
    assert (info.observation, info.action, info.episode_steps, info.frames_per_step, info.problem) == (
        "image: uint8 96x96x1",
        "1 of 18",
        27_000,
        4,
        None,
    )


@pytest.mark.parametrize(
    ("task", "hint"),
    [
        ("atari_pongg", "did you mean atari_pong"),
        ("atari_Pong", "did you mean atari_pong"),
        ("atari_james_bond", "did you mean atari_jamesbond"),
        ("atari_warlords", "There is no task atari_warlords"),  # for two players; the emulator ends the process on it
    ],
)
def test_an_unknown_game_names_the_nearest(task: str, hint: str) -> None:
    with pytest.raises(ReverieError, match=hint):
        AtariEnvironment(task=task)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"size": [64]}, r"size` must be \[height, width\]"),
        ({"size": [0, 64]}, r"size` must be \[height, width\]"),
        ({"action_repeat": 0}, "action_repeat` must be at least 1"),
        ({"frame_stack": 0}, "frame_stack` must be at least 1"),
        ({"max_frames": 0}, "max_frames` must be at least 1"),
        ({"noops": -1}, "noops` must be at least 0"),
        ({"sticky": 1.5}, "sticky` must be from 0.0 to 1.0"),
        ({"lives": "discount"}, "lives` must be unused or terminal"),
        ({"resize": "cubic"}, "resize` must be one of bilinear, area, nearest"),
    ],
)
def test_wrong_options_end_in_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ReverieError, match=sentence):
        env(**options)


def test_an_action_that_does_not_exist_is_refused() -> None:
    one = env(has_all_actions=False)
    one.reset(0)
    with pytest.raises(ValueError, match="outside 0 to 5"):
        one.step(np.array(6))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ale_py", None)
    assert len(task_names()) == 26
    problem = task_info("atari_pong").problem
    assert problem is not None
    assert "pip install 'reverie[atari]'" in problem
