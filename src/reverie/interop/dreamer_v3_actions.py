"""Policies over several named actions, which our environments do not have: one head each, all in one joint action."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from reverie.components.networks.actions import DiscreteOutput, NormalOutput
from reverie.components.networks.distributions import Normal, OneHot, OneHots
from reverie.components.networks.layers import Fan
from reverie.components.networks.one_hot import one_hot
from reverie.types import ReverieError, Space

KeyPolicy = OneHot | OneHots | Normal


@dataclass(frozen=True, kw_only=True, slots=True)
class JointSpace:
    """Named actions as one vector: side by side in sorted order of their keys, as the RSSM reads them.

    Discrete ones are one-hots in it.
    """

    by_key: Mapping[str, Space]
    """Sorted."""

    @property
    def space(self) -> Space:
        return Space(shape=(sum(space.dim for space in self.by_key.values()),), dtype="float32")

    def joined(self, values: Mapping[str, Tensor]) -> Tensor:
        """From values as the environment takes them: class indices, or numbers."""
        vectors = [
            values[key] if space.classes is None else one_hot(values[key], space.classes)
            for key, space in self.by_key.items()
        ]
        return torch.cat(vectors, -1)

    def parted(self, vector: Tensor) -> dict[str, Tensor]:
        """And back."""
        parts = vector.split([space.dim for space in self.by_key.values()], -1)
        return {key: _value(part, space) for (key, space), part in zip(self.by_key.items(), parts, strict=True)}


def _value(vector: Tensor, space: Space) -> Tensor:
    if space.classes is None:
        return vector
    if isinstance(space.classes, int):
        return vector.argmax(-1)
    return torch.stack([part.argmax(-1) for part in vector.split(list(space.classes), -1)], -1)


class JointPolicy:
    """Independent policies by key. Samples are the most likely classes, and mean + stddev * a fixed noise."""

    def __init__(self, policies: Mapping[str, KeyPolicy], joint: JointSpace, noise: Mapping[str, Tensor]) -> None:
        self.by_key = policies
        self._joint, self._noise = joint, noise

    def sample(self, rng: torch.Generator | None) -> Tensor:
        return self.drawn(None)

    def drawn(self, noise: Tensor | None) -> Tensor:
        """Whatever ``noise`` is."""
        drawn = {key: policy.drawn(self._noise.get(key)) for key, policy in self.by_key.items()}
        return self._joint.joined(drawn).detach()

    def vector(self, action: Tensor) -> Tensor:
        return action

    def log_prob(self, action: Tensor) -> Tensor:
        return torch.stack(list(self.log_probs(action).values())).sum(0)

    def log_probs(self, action: Tensor) -> dict[str, Tensor]:
        return {key: self.by_key[key].log_prob(value) for key, value in self._joint.parted(action).items()}

    def entropy(self) -> Tensor:
        return torch.stack([policy.entropy() for policy in self.by_key.values()]).sum(0)


class JointOutput(nn.Module):
    """The last layers of an actor with one head per key. ``form`` is the published name of the continuous ones."""

    has_normal_noise: ClassVar[bool] = True

    def __init__(
        self,
        units: int,
        dim: int,
        *,
        outscale: float,
        fan: Fan,
        joint: JointSpace,
        noise: Mapping[str, Tensor],
        form: str,
        min_stddev: float,
        max_stddev: float,
    ) -> None:
        super().__init__()
        assert dim == joint.space.dim
        self._joint, self._noise = joint, noise
        normal = LogStddevOutput if form == "normal_logstd" else NormalOutput
        discrete = partial(DiscreteOutput, unimix=0.0)  # the reference ignores its unimix for discrete actions
        continuous = partial(normal, min_stddev=min_stddev, max_stddev=max_stddev)
        # By position: a key may hold characters that a module cannot be called.
        self._heads = nn.ModuleList(
            [
                continuous(units, space.dim, outscale=outscale, fan=fan)
                if space.classes is None
                else discrete(units, space.classes, outscale=outscale, fan=fan)
                for space in joint.by_key.values()
            ]
        )

    @property
    def by_key(self) -> dict[str, nn.Module]:
        return dict(zip(self._joint.by_key, self._heads, strict=True))

    def forward(self, hidden: Tensor) -> JointPolicy:
        return JointPolicy({key: head(hidden) for key, head in self.by_key.items()}, self._joint, self._noise)


class LogStddevOutput(NormalOutput):
    """Neither the mean nor the deviation is bounded."""

    def forward(self, hidden: Tensor) -> Normal:
        return Normal(self.mean(hidden), self.stddev(hidden).exp())


def fixed_noise(arrays: Mapping[str, np.ndarray], joint: JointSpace) -> dict[str, Tensor]:
    """What continuous actions are drawn with: ``sample_eps/<key>``, or one ``sample_eps`` for all of them.

    One for all has a value for each number of each action, in sorted order of the keys. A shorter one serves every
    key again, as it serves every call.
    """
    dims = {key: space.dim for key, space in joint.by_key.items() if not space.is_discrete}
    own = {key: _numbers(arrays[f"sample_eps/{key}"]) for key in dims if f"sample_eps/{key}" in arrays}
    if own.keys() != dims.keys():
        if "sample_eps" not in arrays:
            raise ReverieError(
                "a continuous policy needs the array sample_eps: samples are mean + stddev * sample_eps."
            )
        shared = _numbers(arrays["sample_eps"])
        parts = shared.split(list(dims.values())) if shared.numel() == sum(dims.values()) else [shared] * len(dims)
        own = dict(zip(dims, parts, strict=True)) | own
    for key, noise in own.items():
        if noise.numel() not in (1, dims[key]):
            raise ReverieError(f"sample_eps has {noise.numel()} values for the {dims[key]} numbers of '{key}'.")
    return own


def _numbers(array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.asarray(array, np.float32).reshape(-1).copy())
