"""Atari games for tests: made from the presets, walked at random, listened to."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from reverie.commands.catalogue import CONFIGS
from reverie.environments.atari import AtariEnvironment
from reverie.types import Timestep


def env(game: str = "pong", **options: Any) -> AtariEnvironment:
    return AtariEnvironment(task=f"atari_{game}", **options)


@cache
def preset(name: str) -> dict[str, Any]:
    """The options of a YAML file, as the command line would compose them."""
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        composed = compose("config", overrides=[f"environment={name}", "task=atari_pong"])
    node: Any = OmegaConf.to_container(composed.environment.simulator, resolve=True)
    return {key: value for key, value in node.items() if key not in ("_target_", "task")}


def bits(seen: list[Timestep]) -> list[tuple[bytes, float, bool, bool, bool]]:
    return [(one.obs["image"].tobytes(), one.reward, one.is_first, one.is_last, one.is_terminal) for one in seen]


def walk(one: AtariEnvironment, steps: int, seed: int = 0) -> list[Timestep]:
    rng = np.random.default_rng(seed)
    return [one.step(rng.integers(one.spaces.action.dim)) for _ in range(steps)]


def played_frames(one: AtariEnvironment, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The actions of all frames from now on, as the emulator gets them."""
    played: list[int] = []
    act = one._console.act

    def noted(action: int) -> int:
        played.append(action)
        return act(action)

    monkeypatch.setattr(one._console, "act", noted)
    return played
