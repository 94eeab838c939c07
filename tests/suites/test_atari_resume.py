"""Atari games come back bit for bit: by their state, or by replay where the emulator cannot save itself."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from atari_games import bits, env, played_frames, preset, walk

from reverie.environments.atari import _ATARI_100K
from reverie.environments.atari_console import FIRE, Console

DIGEST = "from test_atari_resume import digest; print(digest())"


def digest() -> str:
    """A walk in a game that comes back by replay only."""
    one = env("yars_revenge")
    seen = [one.reset(3), *walk(one, 90)]
    return hashlib.sha256(repr(bits(seen)).encode()).hexdigest()


@pytest.mark.parametrize("game", _ATARI_100K.split())
def test_every_game_of_atari_100k_comes_back_bit_for_bit(game: str) -> None:
    """Sticky actions are on, so that the generator is part of what comes back."""
    options = preset("atari100k") | {"sticky": 0.25, "noops": 4}
    one, other = env(game, **options), env(game, **options)
    first = [one.reset(7), *walk(one, 90)]  # so far, because some games begin with a still picture
    assert one.resume == "state"
    other.set_state(one.get_state())
    assert bits(walk(one, 8, seed=1)) == bits(walk(other, 8, seed=1))
    assert bits([one.reset(7), *walk(one, 90)]) == bits(first)  # a second game leaves no trace of the first
    assert len({step.obs["image"].tobytes() for step in first}) > 1


@pytest.mark.parametrize("part", ["generator", "picture", "console"])
def test_without_a_part_of_the_state_the_walk_is_another(part: str) -> None:
    """The negative control of the test above: the comparison is able to notice."""
    options: dict[str, Any] = {"sticky": 0.5, "noops": 0, "frame_stack": 2}
    one, other = env("breakout", **options), env("breakout", **options)
    other.reset(1)
    one.reset(0)
    for action in [FIRE] * 8 + [3] * 8:
        one.step(np.array(action))
    other.set_state(one.get_state() | {part: other.get_state()[part]})
    assert bits(walk(one, 20)) != bits(walk(other, 20))


def test_the_action_that_sticks_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    one = env(sticky=1.0, noops=0)
    one.reset(0)
    one.set_state(one.get_state() | {"held": 3})
    frames = played_frames(one, monkeypatch)
    walk(one, 2)
    assert frames == [3] * 8


def test_the_time_limit_comes_back_too() -> None:
    one, other = env(max_frames=40), env(max_frames=40)
    one.reset(0)
    walk(one, 6)
    other.set_state(one.get_state())
    assert [step.is_last for step in walk(other, 4)] == [False, False, False, True]


def test_a_game_that_cannot_be_saved_is_replayed_in_another_object() -> None:
    one, other = env("yars_revenge"), env("yars_revenge")
    assert one.resume == "replay"
    one.reset(0)
    walk(one, 5)
    one.reset(3)  # not the first game of this object
    actions = np.random.default_rng(0).integers(0, 18, 30)
    seen = [one.step(action) for action in actions]
    assert bits([other.replay(3, actions)]) == bits(seen[-1:])
    assert bits(walk(one, 10)) == bits(walk(other, 10))


def test_a_game_is_the_same_in_another_process() -> None:
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", DIGEST],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": paths},
    )
    assert done.stdout.split()[-1] == digest()


def test_a_console_is_at_its_start_until_it_plays() -> None:
    console = Console("pong", task="atari_pong")
    start, now = np.zeros(console.screen_shape, np.uint8), np.zeros(console.screen_shape, np.uint8)
    console.draw(start)
    for _ in range(60):
        console.act(2)
    console.draw(now)
    assert not np.array_equal(start, now)
    console.restart()
    console.draw(now)
    assert np.array_equal(start, now)
