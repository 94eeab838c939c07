"""Vectors of discrete values: drawn, encoded, predicted and chosen."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import gymnasium
import pytest
import torch
from torch.nn import functional as F

from reverie.cli import main
from reverie.components.controllers.random_policy import random_action
from reverie.components.networks.distributions import OneHots
from reverie.components.networks.one_hot import one_hot
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.components.representation_learners.identity import Identity
from reverie.types import Space

SPACE = Space(shape=(3,), dtype="int64", classes=(2, 5, 3))

LOCKS = """
import gymnasium
import numpy as np
from gymnasium import spaces


class Locks(gymnasium.Env):
    observation_space = spaces.MultiDiscrete([2, 5, 3])
    action_space = spaces.MultiDiscrete([2, 5])

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.int64), {}

    def step(self, action):
        return np.array([action[0], action[1], 2]), float(action[1]), False, False, {}


gymnasium.register("Locks-v0", entry_point="locks:Locks", max_episode_steps=20)
"""


@pytest.fixture
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "locks.py").write_text(LOCKS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    yield "gym:locks:Locks-v0"
    sys.modules.pop("locks", None)
    gymnasium.registry.pop("Locks-v0", None)


def test_random_actions_cover_every_element_evenly() -> None:
    drawn = random_action(SPACE, 6000, torch.Generator().manual_seed(0))
    assert drawn.shape == (6000, 3)
    assert drawn.dtype == torch.int64
    for element, classes in enumerate((2, 5, 3)):
        counts = drawn[:, element].bincount()
        assert len(counts) == classes
        assert (counts.float() / 6000 - 1 / classes).abs().max() < 0.03
    together = drawn[:, 0] * 15 + drawn[:, 1] * 3 + drawn[:, 2]
    assert len(together.unique()) == 30  # the elements do not hang together


def test_one_hots_stand_side_by_side() -> None:
    value = torch.tensor([[[1, 4, 0]], [[0, 0, 2]]])
    expected = [[[0, 1, 0, 0, 0, 0, 1, 1, 0, 0]], [[1, 0, 1, 0, 0, 0, 0, 0, 0, 1]]]
    assert one_hot(value, (2, 5, 3)).tolist() == expected
    assert one_hot(torch.tensor(2), 3).tolist() == [0, 0, 1]
    assert Identity(spaces={"x": SPACE})({"x": value}).tolist() == expected


def test_the_loss_is_the_sum_of_the_elements_cross_entropies() -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[0, 1, 2], [1, 4, 0], [0, 0, 0], [1, 3, 1]])
    bounds = ((0, 0, 2), (1, 2, 7), (2, 7, 10))
    expected = sum(F.cross_entropy(logits[:, low:high], target[:, i], reduction="none") for i, low, high in bounds)
    assert torch.allclose(OneHots(logits, (2, 5, 3)).loss(target), torch.as_tensor(expected))


def test_encoder_and_decoder_take_them() -> None:
    encoder = VectorEncoder(spaces={"x": SPACE}, layers=1, units=8)
    decoder = VectorDecoder(spaces={"x": SPACE}, feature_dim=8, layers=1, units=8)
    value = torch.tensor([[1, 4, 0], [1, 4, 1]])
    tokens = encoder({"x": value})
    assert not torch.equal(tokens[0], tokens[1])
    prediction = decoder(tokens)["x"]
    assert isinstance(prediction, OneHots)
    assert [one.probs.shape[-1] for one in prediction.elements] == [2, 5, 3]
    assert prediction.loss(value).shape == (2,)


def test_a_run_with_random_actions_keeps_them(locks: str) -> None:
    arguments = ["experiment=random_cartpole", f"task={locks}", "training.total_timesteps=60", "logdir=run"]
    assert main(["train", *arguments, "environment.num_envs=2", "evaluation.episodes=2"]) == 0
    assert main(["resume", "run", "training.total_timesteps=90", "--allow", "locks"]) == 0


def test_dreamer_learns_actions_of_many_parts(locks: str, tmp_path: Path) -> None:
    run = tmp_path / "dreamer"
    short = ("training.total_timesteps=80", "evaluation.episodes=1", "evaluation.envs=1", "logging.every_steps=20")
    sizes = ("size=debug", "environment.num_envs=1", "training.batch_size=2", "training.batch_length=8")
    assert main(["train", f"task={locks}", f"logdir={run}", *sizes, *short]) == 0
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any("train/loss/policy" in line for line in lines)
