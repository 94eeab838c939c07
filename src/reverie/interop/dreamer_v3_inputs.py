"""Arrays of a published training step as our batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.components.representation_learners.latents import Latent
from reverie.interop.dreamer_v3_settings import LOSSES, Settings
from reverie.interop.links import Arrays
from reverie.types import Batch, Observation, ReverieError, RowIndex, Space


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The input arrays, and what they and the configuration say about the model."""

    settings: Settings
    arrays: Arrays
    obs: dict[str, Space]
    """In the order of the configuration."""
    action: Space
    action_key: str
    latent: tuple[int, int]
    """Categorical variables, and classes of each."""

    @classmethod
    def of(cls, config: Mapping[str, Any], params: Arrays, arrays: Arrays) -> Given:
        keys = sorted({name.split("/")[2] for name in params if name.startswith("pol/head/")})
        if len(keys) != 1:
            raise ReverieError(f"the given policy has {len(keys)} actions ({', '.join(keys)}); one is supported.")
        stoch, classes = arrays["data/dyn/stoch"].shape[-2:]
        obs_keys = list(config.get("obs") or _obs_keys(arrays, keys[0]))
        return cls(
            settings=Settings.of(config, obs_keys, arrays),
            arrays=arrays,
            obs={key: _space(arrays[f"data/{key}"], params.get(f"dec/vec/{key}/logits/bias")) for key in obs_keys},
            action=_space(arrays[f"data/{keys[0]}"], params.get(f"pol/head/{keys[0]}/logits/bias")),
            action_key=keys[0],
            latent=(stoch, classes),
        )

    @property
    def image_keys(self) -> list[str]:
        return [key for key, space in self.obs.items() if space.is_image]

    @property
    def deter_dim(self) -> int:
        return self.arrays["data/dyn/deter"].shape[-1]

    def scales(self) -> Arrays:
        """The weight of each loss by its published name."""
        weights = self.settings.loss_weights
        found = dict.fromkeys(self.obs, weights["reconstruction"])
        found |= {theirs: weights[ours] for theirs, ours in LOSSES.items()}
        return {name: np.array(weight, np.float32) for name, weight in found.items()}

    def their_action(self, action: Tensor) -> np.ndarray:
        """In the type and shape in which it was given."""
        theirs = self.arrays[f"data/{self.action_key}"]
        return action.numpy().astype(theirs.dtype).reshape(*action.shape[:2], *theirs.shape[2:])

    def batch(self, data: str) -> Batch:
        """From the last step of context on. Latents stored in replay are the business of ``carry``."""
        rows = slice(self.settings.context - 1, None)
        reward = self._tensor(f"{data}/reward").float()[:, rows]
        size = reward.shape[0]
        return Batch(
            obs={key: _values(self._tensor(f"{data}/{key}"), space)[:, rows] for key, space in self.obs.items()},
            reward=reward,
            is_first=self._tensor(f"{data}/is_first").bool()[:, rows],
            is_last=self._tensor(f"{data}/is_last").bool()[:, rows],
            is_terminal=self._tensor(f"{data}/is_terminal").bool()[:, rows],
            action=_values(self._tensor(f"{data}/{self.action_key}"), self.action)[:, rows],
            index=RowIndex(stream=torch.zeros(size, dtype=torch.int64), slot=torch.zeros_like(reward).long()),
        )

    def carry(self, data: str, previous: Latent | None) -> Latent:
        """The latent stored with the last step of context, or ``previous`` where the sequence goes on (consec)."""
        last = self.settings.context - 1
        deter, stoch = (self._tensor(f"{data}/dyn/{part}").float()[:, last] for part in ("deter", "stoch"))
        goes_on = self._tensor(f"{data}/consec")[:, 0] != 0
        if previous is None:
            if goes_on.any():
                raise ReverieError(f"{data}/consec says that sequences go on, but there is no carry.")
            return Latent(deter=deter, stoch=stoch)
        return Latent(
            deter=torch.where(goes_on[:, None], previous.deter, deter),
            stoch=torch.where(goes_on[:, None, None], previous.stoch, stoch),
        )

    def first_carry(self) -> Latent | None:
        if "carry/dyn/deter" not in self.arrays:
            return None
        return Latent(deter=self._tensor("carry/dyn/deter").float(), stoch=self._tensor("carry/dyn/stoch").float())

    def observation(self, data: str, step: int) -> Observation:
        return Observation(
            obs={key: _values(self._tensor(f"{data}/{key}"), space)[:, step] for key, space in self.obs.items()},
            reward=self._tensor(f"{data}/reward").float()[:, step],
            is_first=self._tensor(f"{data}/is_first").bool()[:, step],
            is_last=self._tensor(f"{data}/is_last").bool()[:, step],
            is_terminal=self._tensor(f"{data}/is_terminal").bool()[:, step],
        )

    def _tensor(self, name: str) -> Tensor:
        if name not in self.arrays:
            raise ReverieError(f"the array {name} is missing.")
        return torch.from_numpy(np.array(self.arrays[name]))


def _obs_keys(arrays: Arrays, action_key: str) -> list[str]:
    """What is data and nothing else."""
    known = {"reward", "is_first", "is_last", "is_terminal", "consec", "stepid", "dyn", action_key}
    names = [name.removeprefix("data/") for name in arrays if name.startswith("data/")]
    return [name for name in names if name.split("/")[0] not in known]


def _space(value: np.ndarray, logits: np.ndarray | None) -> Space:
    """Of values [B, T, ...]: pictures have three more axes, discrete values logits, and the rest are numbers."""
    shape = value.shape[2:]
    if len(shape) == 3:
        return Space(shape=shape, dtype="uint8")
    size = int(np.prod(shape, dtype=np.int64))
    if logits is None:
        return Space(shape=(size,), dtype="float32")
    if not shape:
        return Space(shape=(), dtype="int64", classes=logits.size)
    return Space(shape=(size,), dtype="int64", classes=(logits.size // size,) * size)


def _values(value: Tensor, space: Space) -> Tensor:
    """In the type of our space, with everything behind batch and time in one axis unless it is a picture."""
    if space.is_image:
        return value
    flat = value.reshape(*value.shape[:2], *space.shape)
    return flat.long() if space.is_discrete else flat.float()
