"""Layers of the published code in float64, written without any of our modules."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F


class PlainNetworks:
    """Reads published parameters by their names."""

    def __init__(self, params: Mapping[str, np.ndarray], act: Callable[[Tensor], Tensor]) -> None:
        self.params = {name: torch.tensor(value, dtype=torch.float64) for name, value in params.items()}
        for name, value in self.params.items():
            value.requires_grad_(not name.startswith(("slowval", "retnorm")))
        self._act = act

    def linear(self, name: str, x: Tensor) -> Tensor:
        return x @ self.params[f"{name}/kernel"] + self.params[f"{name}/bias"]

    def blocks(self, name: str, x: Tensor) -> Tensor:
        kernel = self.params[f"{name}/kernel"]
        parts = [part @ one for part, one in zip(x.chunk(len(kernel), -1), kernel, strict=True)]
        return torch.cat(parts, -1) + self.params[f"{name}/bias"]

    def convolution(self, name: str, x_NHWC: Tensor) -> Tensor:
        kernel, bias = self.params[f"{name}/kernel"], self.params[f"{name}/bias"]
        x = F.conv2d(x_NHWC.permute(0, 3, 1, 2), kernel.permute(3, 2, 0, 1), bias, padding=kernel.shape[0] // 2)
        return x.permute(0, 2, 3, 1)

    def normed(self, name: str, x: Tensor) -> Tensor:
        """With the activation behind it."""
        if f"{name}/scale" not in self.params:
            return self._act(x)
        if f"{name}/shift" in self.params:
            x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-4).sqrt() * self.params[f"{name}/scale"]
        return self._act(x + self.params.get(f"{name}/shift", torch.zeros(())))

    def stack(self, linears: str, norms: str, x: Tensor) -> Tensor:
        index = 0
        while f"{linears.format(index)}/kernel" in self.params:
            x = self.normed(norms.format(index), self.linear(linears.format(index), x))
            index += 1
        return x

    def mlp(self, name: str, x: Tensor) -> Tensor:
        return self.stack(name + "/mlp/linear{}", name + "/mlp/norm{}", x)
