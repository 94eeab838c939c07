"""Arrays of a published training step as our batches."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.components.representation_learners.latents import Latent
from reverie.interop.dreamer_v3_actions import JointSpace
from reverie.interop.dreamer_v3_config import PublishedConfig
from reverie.interop.dreamer_v3_settings import LOSSES, SECTIONS, Settings
from reverie.interop.dreamer_v3_sizes import Sizes, check_sizes, sizes_of
from reverie.interop.links import Arrays
from reverie.types import Batch, Observation, ReverieError, RowIndex, Space

FLAGS = ("is_first", "is_last", "is_terminal")


@dataclass(frozen=True, kw_only=True, slots=True)
class Given:
    """The input arrays, and what they and the configuration say about the model."""

    settings: Settings
    arrays: Arrays
    obs: dict[str, Space]
    """In the order of the configuration."""
    actions: JointSpace
    sizes: Sizes

    @classmethod
    def of(cls, config: Mapping[str, Any], params: Arrays, arrays: Arrays) -> Given:
        published = PublishedConfig(config)
        stoch, classes = _axes(arrays, "data/dyn/stoch", 4)[2:]
        sizes = sizes_of(params, latent=(stoch, classes))
        check_sizes(published, sizes, params)
        action_keys = _action_keys(params)
        obs_keys = list(config.get("obs") or _obs_keys(arrays, action_keys))
        for data in ("data", "data2") if "data2/reward" in arrays else ("data",):
            _check_axes(arrays, data, [*obs_keys, *action_keys, *FLAGS, "consec", "dyn/deter", "dyn/stoch"])
        return cls(
            settings=Settings.of(published, obs_keys, arrays),
            arrays=arrays,
            obs={key: _obs_space(arrays[f"data/{key}"], params, key) for key in obs_keys},
            actions=JointSpace(
                by_key={
                    key: _space(arrays[f"data/{key}"], params.get(f"pol/head/{key}/logits/bias")) for key in action_keys
                }
            ),
            sizes=sizes,
        )

    @property
    def image_keys(self) -> list[str]:
        return [key for key, space in self.obs.items() if space.is_image]

    def size(self, part: str, name: str) -> int:
        """A size of one of the networks in ``SECTIONS``."""
        full_name = f"{SECTIONS[part]}.{name}"
        if full_name not in self.sizes:
            raise ReverieError(f"the given parameters of {part} do not fit the observations: {name} is unknown.")
        return self.sizes[full_name]

    def scales(self) -> Arrays:
        """The weight of each loss by its published name."""
        found = self.settings.reconstruction_weights | {
            theirs: self.settings.loss_weights[ours] for theirs, ours in LOSSES.items()
        }
        return {name: np.array(weight, np.float32) for name, weight in found.items()}

    def their_actions(self, prefix: str, vector: Tensor) -> Arrays:
        """In the types and shapes in which they were given; ``vector`` has two axes in front."""
        found = {}
        for key, value in self.actions.parted(vector).items():
            theirs = self.arrays[f"data/{key}"]
            found[f"{prefix}/{key}"] = value.numpy().astype(theirs.dtype).reshape(*vector.shape[:2], *theirs.shape[2:])
        return found

    def action_shape(self, key: str) -> tuple[int, ...]:
        return self.arrays[f"data/{key}"].shape[2:]

    def batch(self, data: str) -> Batch:
        """From the last step of context on. Latents stored in replay are the business of ``carry``."""
        rows = slice(self.settings.context - 1, None)
        reward = self._tensor(f"{data}/reward").float()[:, rows]
        if reward.shape[1] < 3:  # a return needs a step to arrive at
            raise ReverieError(f"{data} must hold at least two steps behind its {self.settings.context} of context.")
        flags = [self._tensor(f"{data}/{name}").bool()[:, rows] for name in FLAGS]
        return Batch(
            obs={key: self._values(f"{data}/{key}", space)[:, rows] for key, space in self.obs.items()},
            reward=reward,
            is_first=flags[0],
            is_last=flags[1],
            is_terminal=flags[2],
            action=self.actions.joined(
                {key: self._values(f"{data}/{key}", space)[:, rows] for key, space in self.actions.by_key.items()}
            ),
            index=RowIndex(stream=torch.zeros(len(reward), dtype=torch.int64), row=torch.zeros_like(reward).long()),
        )

    def carry(self, data: str, previous: Latent | None) -> Latent:
        """The latent stored with the last step of context, or ``previous`` where the sequence goes on (consec)."""
        last = self.settings.context - 1
        stored = self._latents(f"{data}/dyn")
        deter, stoch = stored.deter[:, last], stored.stoch[:, last]
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
        return self._latents("carry/dyn") if "carry/dyn/deter" in self.arrays else None

    def observation(self, data: str, step: int) -> Observation:
        flags = [self._tensor(f"{data}/{name}").bool()[:, step] for name in FLAGS]
        return Observation(
            obs={key: self._values(f"{data}/{key}", space)[:, step] for key, space in self.obs.items()},
            reward=self._tensor(f"{data}/reward").float()[:, step],
            is_first=flags[0],
            is_last=flags[1],
            is_terminal=flags[2],
        )

    def _latents(self, name: str) -> Latent:
        deter, stoch = (self._tensor(f"{name}/{part}").float() for part in ("deter", "stoch"))
        sizes = (self.size("dyn", "deter"), self.size("dyn", "stoch"), self.size("dyn", "classes"))
        if (deter.shape[-1], *stoch.shape[-2:]) != sizes:
            shapes = f"{tuple(deter.shape)} and {tuple(stoch.shape)}"
            raise ReverieError(f"{name}/deter and stoch have the shapes {shapes}, but the model has {sizes}.")
        return Latent(deter=deter, stoch=stoch)

    def _tensor(self, name: str) -> Tensor:
        return torch.from_numpy(np.array(self.arrays[name]))

    def _values(self, name: str, space: Space) -> Tensor:
        """In the type of our space, with everything behind batch and time in one axis unless it is a picture."""
        value = self._tensor(name)
        if space.is_image:
            return value
        flat = value.reshape(*value.shape[:2], *space.shape)
        if space.classes is None:
            return flat.float()
        classes = space.classes if isinstance(space.classes, int) else space.classes[0]
        if ((flat < 0) | (flat >= classes)).any():
            raise ReverieError(f"{name} must hold classes from 0 to {classes - 1}.")
        return flat.long()


def _action_keys(params: Arrays) -> list[str]:
    """Sorted, as the reference joins them."""
    found = [re.fullmatch(r"pol/head/(.+)/(?:logits|mean)/kernel", name) for name in params]
    keys = sorted({match[1] for match in found if match})
    if not keys:
        raise ReverieError(
            "the given policy has no action: parameters such as pol/head/action/mean/kernel are missing."
        )
    return keys


def _obs_keys(arrays: Arrays, action_keys: list[str]) -> list[str]:
    """What is data and nothing else."""
    known = {"reward", *FLAGS, "consec", "stepid", *action_keys}
    names = [name.removeprefix("data/") for name in arrays if name.startswith("data/")]
    return [name for name in names if name not in known and not name.startswith("dyn/")]


def _axes(arrays: Arrays, name: str, count: int) -> tuple[int, ...]:
    shape = arrays[name].shape
    if len(shape) != count:
        raise ReverieError(f"{name} must have {count} axes, but its shape is {shape}.")
    return shape


def _check_axes(arrays: Arrays, data: str, names: list[str]) -> None:
    """Everything is [batch, time, ...]."""
    size, length = _axes(arrays, f"{data}/reward", 2)
    for name in names:
        if (shape := arrays[f"{data}/{name}"].shape)[:2] != (size, length):
            raise ReverieError(f"{data}/{name} has the shape {shape}, but {data}/reward has {(size, length)}.")


def _obs_space(value: np.ndarray, params: Arrays, key: str) -> Space:
    """Of values [B, T, ...]: pictures have three more axes."""
    if value.ndim == 5:
        return Space(shape=value.shape[2:], dtype="uint8")
    return _space(value, params.get(f"dec/vec/{key}/logits/bias"))


def _space(value: np.ndarray, logits: np.ndarray | None) -> Space:
    """Discrete values have logits, and the rest are numbers."""
    shape = value.shape[2:]
    size = int(np.prod(shape, dtype=np.int64))
    if logits is None:
        return Space(shape=(size,), dtype="float32")
    if not shape:
        return Space(shape=(), dtype="int64", classes=logits.size)
    return Space(shape=(size,), dtype="int64", classes=(logits.size // size,) * size)
