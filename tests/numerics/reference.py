"""Arrays of the published DreamerV3 code, and how close to them is close enough."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reverie.interop.links import Link

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


def parameters(name: str, prefix: str = "param") -> dict[str, np.ndarray]:
    """The arrays of one fixture file under ``prefix``, without it."""
    found = {key: value.numpy() for key, value in arrays(name).items() if key.startswith(f"{prefix}/")}
    return {key.removeprefix(f"{prefix}/"): value for key, value in found.items()}


def assert_gradients(loss: Tensor, links: list[Link], name: str, prefix: str = "grad") -> None:
    """Every tensor of ``links`` by itself; zeros where the loss does not reach."""
    expected = parameters(name, prefix)
    assert {link.name for link in links} == expected.keys()
    found = torch.autograd.grad(loss, [link.tensor for link in links], retain_graph=True, materialize_grads=True)
    for link, grad in zip(links, found, strict=True):
        assert_near(
            torch.from_numpy(link.theirs(grad)), torch.from_numpy(expected[link.name]), GRADIENT, what=link.name
        )
