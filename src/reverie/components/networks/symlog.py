"""Squashing that keeps the sign and compresses large values."""

from __future__ import annotations

import torch
from torch import Tensor


def symlog(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(torch.abs(x))


def symexp(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.expm1(torch.abs(x))
