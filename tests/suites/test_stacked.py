"""Pictures behind each other: which ones, in which order, and the same after every kind of return."""

from __future__ import annotations

import functools
from typing import Literal

import numpy as np
import pytest
import torch

from reverie.build import environments
from reverie.commands.composition import composed
from reverie.environments.base import Environment
from reverie.environments.builtin import BuiltinEnvironment
from reverie.environments.stacked import StackedPictures
from reverie.types import ReverieError, Timestep

PICTURES = functools.partial(BuiltinEnvironment, task="builtin_image", size=16)
ACTIONS = [np.array(1 + step % 4, dtype=np.int64) for step in range(6)]


class Replayed(BuiltinEnvironment):
    """The same game, for a suite whose episodes come back by being played again."""

    resume: Literal["replay"] = "replay"


def played(environment: Environment, steps: int) -> list[Timestep]:
    return [environment.reset(7), *(environment.step(action) for action in ACTIONS[:steps])]


def test_the_oldest_is_first_and_the_first_stands_for_missing_ones() -> None:
    bare = [one.obs["image"] for one in played(PICTURES(), 5)]
    stacked = played(StackedPictures(PICTURES(), count=3), 5)
    assert len({picture.tobytes() for picture in bare}) > 2
    for step, one in enumerate(stacked):
        expected = [bare[max(0, step - back)] for back in (2, 1, 0)]
        assert np.array_equal(one.obs["image"], np.concatenate(expected, axis=2))
        assert one.is_first == (step == 0)


def test_a_new_episode_forgets_the_old_one() -> None:
    environment = StackedPictures(PICTURES(), count=2)
    played(environment, 4)
    assert (
        played(environment, 0)[0].obs["image"].tobytes()
        == played(StackedPictures(PICTURES(), count=2), 0)[0].obs["image"].tobytes()
    )


def test_the_space_says_so() -> None:
    environment = StackedPictures(PICTURES(), count=3)
    assert environment.spaces.obs["image"].shape == (16, 16, 9)
    assert environment.spaces.action == PICTURES().spaces.action


@pytest.mark.parametrize(
    ("kind", "in_workers"), [(BuiltinEnvironment, "false"), (BuiltinEnvironment, "true"), (Replayed, "false")]
)
def test_a_run_comes_back_with_its_pictures(kind: type[BuiltinEnvironment], in_workers: str) -> None:
    settings = ["environment.frame_stack=3", "environment.simulator.size=16", f"environment.in_workers={in_workers}"]
    config = composed("builtin_image", settings)
    if kind is Replayed:
        config.environment.simulator["_target_"] = f"{Replayed.__module__}.Replayed"
    one, other = (environments(config, num_envs=2, seed=3, allow=None) for _ in range(2))
    act = torch.tensor([1, 2])
    for _ in range(3):
        one.step(act)
    other.set_state(one.get_state())
    assert other.inexact is None
    for _ in range(25):  # beyond the end of the episode
        ours, theirs = one.observe(), other.observe()
        assert torch.equal(ours.obs["image"], theirs.obs["image"])
        one.step(act)
        other.step(act)
    assert ours.obs["image"].shape == (2, 16, 16, 9)
    one.close()
    other.close()


@pytest.mark.parametrize(
    ("task", "settings", "words"),
    [
        ("gym_CartPole-v1", [], "shows none"),
        ("builtin_image", ["environment.frame_stack=0"], "at least 1"),
        ("atari_pong", ["environment=atari_fast"], "choose another `environment`"),
    ],
)
def test_refusals(task: str, settings: list[str], words: str) -> None:
    config = composed(task, ["environment.frame_stack=2", *settings])
    with pytest.raises(ReverieError, match=words):
        environments(config, num_envs=1, seed=0, allow=None)
