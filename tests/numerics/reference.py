"""Arrays of the published DreamerV3 code, and how close to them is close enough."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

FOLDER = Path(__file__).parent / "fixtures" / "dreamerv3"

FORWARD = 1e-5
"""Largest difference of outputs and losses, relative to the largest value of the array."""
GRADIENT = 5e-5


@cache
def arrays(name: str) -> dict[str, Tensor]:
    """All numeric arrays of one fixture file, by the names that the reference gives them."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(np.array(file[key])) for key in file.files if file[key].dtype.kind != "U"}


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """The largest difference, relative to the largest expected value; absolute where all expected values are 0."""
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} against {tuple(expected.shape)}"
    scale = float(expected.abs().max()) or 1.0
    return float((actual.detach().double() - expected.double()).abs().max()) / scale


def assert_near(actual: Tensor, expected: Tensor, tolerance: float = FORWARD, *, what: str = "") -> None:
    error = relative_error(actual, expected)
    assert error <= tolerance, f"{what} differs by {error:.2e}, allowed is {tolerance:.0e}"


def assert_rows_near(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Each row by itself: small rows must not hide behind large ones."""
    for row, (one, other) in enumerate(zip(actual, expected, strict=True)):
        assert_near(one, other, tolerance, what=f"row {row}")


def load_parameters(module: nn.Module, given: dict[str, Tensor]) -> None:
    """Every parameter of ``module`` from ``given``; a name too many or too few is an error."""
    assert given.keys() == dict(module.named_parameters()).keys()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(given[name])


def gradients(loss: Tensor, module: nn.Module) -> dict[str, Tensor]:
    """By parameter name; zeros where the loss does not reach."""
    names, parameters = zip(*module.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters, retain_graph=True, materialize_grads=True)
    return dict(zip(names, found, strict=True))
