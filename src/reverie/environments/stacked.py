"""The last pictures behind each other along their channels, for agents without a memory."""

from __future__ import annotations

import importlib
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from reverie.environments.base import Environment
from reverie.types import ReverieError, Spaces, State, Timestep, require


class StackedPictures(Environment):
    """``environment`` with the last ``count`` pictures of each key in one, the oldest first.

    Before an episode had enough of them, its first picture stands for those that are missing. Other keys stay as they
    are. An open episode comes back as that of ``environment`` does, its pictures included.
    """

    def __init__(self, environment: Environment, *, count: int) -> None:
        require("environment.frame_stack", count, at_least=1)
        self._environment = environment
        self.task, self.frames_per_step = environment.task, environment.frames_per_step
        self.resume = environment.resume
        spaces = environment.spaces
        keys = [key for key, space in spaces.obs.items() if space.is_image]
        if not keys:
            environment.close()
            raise ReverieError(f"`environment.frame_stack` stacks pictures, but {self.task} shows none: set it to 1.")
        self._frames = {key: deque[np.ndarray](maxlen=count) for key in keys}
        stacked = {
            key: replace(space, shape=(*space.shape[:2], space.shape[2] * count)) if key in keys else space
            for key, space in spaces.obs.items()
        }
        self.spaces = Spaces(obs=stacked, action=spaces.action)

    def reset(self, seed: int) -> Timestep:
        return self._stacked(self._environment.reset(seed))

    def step(self, action: np.ndarray) -> Timestep:
        return self._stacked(self._environment.step(action))

    def close(self) -> None:
        self._environment.close()

    def get_state(self) -> State:
        frames = {key: np.stack(list(seen)) for key, seen in self._frames.items()}
        return {"environment": self._environment.get_state(), "frames": frames}

    def set_state(self, state: State) -> None:
        self._environment.set_state(state["environment"])
        for key, seen in self._frames.items():
            seen.clear()
            seen.extend(np.array(picture) for picture in state["frames"][key])

    def _stacked(self, now: Timestep) -> Timestep:
        obs = dict(now.obs)
        for key, seen in self._frames.items():
            if now.is_first:
                seen.extend([obs[key]] * (seen.maxlen or 1))
            else:
                seen.append(obs[key])
            obs[key] = np.concatenate(list(seen), axis=2)
        return replace(now, obs=obs)


def made_stacked(module: str, name: str, arguments: Mapping[str, Any], count: int) -> StackedPictures:
    """One around what the function ``name`` of ``module`` makes, here or in another process."""
    return StackedPictures(getattr(importlib.import_module(module), name)(**arguments), count=count)
