"""Published-style parameters and data of an agent of any shape, with numbers that mean nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Spaces = Mapping[str, tuple[tuple[int, ...], int | None]]
"""The shape of each key, and its classes where it is discrete."""

CONFIG = {"agent.opt.lr": 1e-3, "agent.opt.warmup": 0, "agent.imag_length": 3}
DETER, HIDDEN, BLOCKS, STOCH, CLASSES, UNITS = 16, 6, 4, 3, 5, 8
FEATURE = DETER + STOCH * CLASSES


class MadeUpAgent:
    """``config``, ``params`` and ``inputs`` for ``train_step``."""

    def __init__(
        self,
        obs: Spaces,
        actions: Spaces,
        *,
        channels: tuple[int, ...] = (4, 6, 8),
        layers: int = 2,
        bins: int = 21,
        norm: str = "rms",
        output: str = "logits",
        seed: int = 0,
    ) -> None:
        self._rng, self._norm, self._layers, self._channels = np.random.default_rng(seed), norm, layers, channels
        self._obs, self._actions = obs, actions
        self.params: Arrays = {}
        self.inputs: Arrays = {}
        self.config: dict[str, Any] = CONFIG | {"obs": {key: list(shape) for key, (shape, _) in obs.items()}}
        self._networks(width(actions), bins, output)
        for data in ("data", "data2"):
            self._rows(data, batch=2, length=5)
        self.inputs["data/consec"][1] = 1
        self.inputs |= {f"carry/dyn/{part}": self.inputs[f"data2/dyn/{part}"][:, 3] for part in ("deter", "stoch")}
        numbers = sum(math.prod(shape) for shape, classes in actions.values() if classes is None)
        self.inputs["sample_eps"] = self._normal(numbers)

    def _normal(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (scale * self._rng.standard_normal(shape)).astype(np.float32)

    def _layer(self, name: str, inputs: int, outputs: int, *, norm: str | None = None, blocks: int = 0) -> int:
        """Its number of outputs. With ``blocks`` a block layer; ``norm`` is the name of the norm behind it."""
        shape = (blocks, inputs // blocks, outputs // blocks) if blocks else (inputs, outputs)
        self.params[f"{name}/kernel"] = self._normal(*shape, scale=1.5 / math.sqrt(shape[-2]))
        self.params[f"{name}/bias"] = self._normal(outputs, scale=0.2)
        return self._normed(norm, outputs)

    def _normed(self, norm: str | None, size: int) -> int:
        if norm and self._norm != "none":
            self.params[f"{norm}/scale"] = 1 + self._normal(size, scale=0.2)
        if norm and self._norm == "layer":
            self.params[f"{norm}/shift"] = self._normal(size, scale=0.2)
        return size

    def _convolution(self, name: str, inputs: int, outputs: int, *, norm: str | None = None) -> int:
        self.params[f"{name}/kernel"] = self._normal(3, 3, inputs, outputs, scale=1.5 / math.sqrt(9 * inputs))
        self.params[f"{name}/bias"] = self._normal(outputs, scale=0.2)
        return self._normed(norm, outputs)

    def _mlp(self, name: str, inputs: int) -> None:
        for index in range(self._layers):
            inputs = self._layer(f"{name}/mlp/linear{index}", inputs, UNITS, norm=f"{name}/mlp/norm{index}")

    def _networks(self, action_dim: int, bins: int, output: str) -> None:
        pictures = {key: shape for key, (shape, _) in self._obs.items() if len(shape) == 3}
        vectors = {key: space for key, space in self._obs.items() if key not in pictures}
        tokens = (self._vectors(vectors) if vectors else 0) + (self._pictures(pictures) if pictures else 0)
        self._rssm(tokens, action_dim)
        for head in ("rew", "val"):
            self._mlp(head, FEATURE)
            self._layer(f"{head}/head/{output}", UNITS, bins if output == "logits" else 1)
            if output == "logits":  # predictions of order one
                self.params[f"{head}/head/logits/bias"] -= 0.5 * np.linspace(-6, 6, bins, dtype=np.float32) ** 2
        self._mlp("con", FEATURE)
        self._layer("con/head/logit", UNITS, 1)
        self._mlp("pol", FEATURE)
        for key, (shape, classes) in self._actions.items():
            for part in ("mean", "stddev") if classes is None else ("logits",):
                self._layer(f"pol/head/{key}/{part}", UNITS, math.prod(shape) * (classes or 1))
        critic = {name: value for name, value in self.params.items() if name.startswith("val/")}
        self.params |= {f"slow{name}": value + self._normal(*value.shape, scale=0.02) for name, value in critic.items()}
        self.params |= {"retnorm/lo/value": np.float32(-0.3), "retnorm/hi/value": np.float32(1.9)}

    def _vectors(self, spaces: Spaces) -> int:
        size = width(spaces)
        for index in range(self._layers):
            size = self._layer(f"enc/mlp{index}", size, UNITS, norm=f"enc/mlp{index}norm")
        self._mlp("dec", FEATURE)
        for key, (shape, classes) in spaces.items():
            name = f"dec/vec/{key}/{'pred' if classes is None else 'logits'}"
            self._layer(name, UNITS, math.prod(shape) * (classes or 1))
        return UNITS

    def _pictures(self, shapes: Mapping[str, tuple[int, ...]]) -> int:
        colours, stages = sum(shape[-1] for shape in shapes.values()), len(self._channels)
        height, width_, _ = next(iter(shapes.values()))
        size = colours
        for index, channels in enumerate(self._channels):
            size = self._convolution(f"enc/cnn{index}", size, channels, norm=f"enc/cnn{index}norm")
        smallest = (height >> stages) * (width_ >> stages) * size
        self._layer("dec/sp0", DETER, smallest, blocks=2)
        self._layer("dec/sp1", STOCH * CLASSES, 2 * UNITS, norm="dec/sp1norm")
        self._layer("dec/sp2", 2 * UNITS, smallest)
        self._normed("dec/spnorm", size)
        for index in reversed(range(stages - 1)):
            size = self._convolution(f"dec/conv{index}", size, self._channels[index], norm=f"dec/conv{index}norm")
        self._convolution("dec/imgout", size, colours)
        return smallest

    def _rssm(self, tokens: int, action_dim: int) -> None:
        for index, size in enumerate((DETER, STOCH * CLASSES, action_dim)):
            self._layer(f"dyn/dynin{index}", size, HIDDEN, norm=f"dyn/dynin{index}norm")
        self._layer("dyn/dynhid0", DETER + BLOCKS * 3 * HIDDEN, DETER, norm="dyn/dynhid0norm", blocks=BLOCKS)
        self._layer("dyn/dyngru", DETER, 3 * DETER, blocks=BLOCKS)
        self._layer("dyn/prior0", DETER, HIDDEN, norm="dyn/prior0norm")
        self._layer("dyn/priorlogit", HIDDEN, STOCH * CLASSES)
        self._layer("dyn/obs0", DETER + tokens, HIDDEN, norm="dyn/obs0norm")
        self._layer("dyn/obslogit", HIDDEN, STOCH * CLASSES)

    def _rows(self, data: str, *, batch: int, length: int) -> None:
        for key, (shape, classes) in {**self._obs, **self._actions}.items():
            full = (batch, length, *shape)
            if len(shape) == 3:
                self.inputs[f"{data}/{key}"] = self._rng.integers(0, 256, full, dtype=np.uint8)
            elif classes is not None:
                self.inputs[f"{data}/{key}"] = self._rng.integers(0, classes, full, dtype=np.int32)
            else:
                self.inputs[f"{data}/{key}"] = self._normal(*full)
        flags = {name: np.zeros((batch, length), bool) for name in ("is_first", "is_last", "is_terminal")}
        flags["is_first"][:, 0] = flags["is_first"][0, 3] = flags["is_last"][0, 2] = flags["is_terminal"][0, 2] = True
        latents = np.eye(CLASSES, dtype=np.float32)[self._rng.integers(0, CLASSES, (batch, length, STOCH))]
        rows = flags | {"reward": self._normal(batch, length), "consec": np.zeros((batch, length), np.int32)}
        rows |= {"dyn/deter": np.tanh(self._normal(batch, length, DETER)), "dyn/stoch": latents}
        self.inputs |= {f"{data}/{key}": value for key, value in rows.items()}


def width(spaces: Spaces) -> int:
    """Of all values as one vector."""
    return sum(math.prod(shape) * (classes or 1) for shape, classes in spaces.values())
