"""OpenSimplex noise at points that never change: whatever does not depend on the seed is worked out once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


class _Lattice(NamedTuple):
    """One lattice point for each of the first points: where it lies, how far from the point, and how much it counts."""

    x: np.ndarray
    y: np.ndarray
    z: np.ndarray
    dx: np.ndarray
    dy: np.ndarray
    dz: np.ndarray
    weight: np.ndarray


class FixedNoise:
    """What ``OpenSimplex(seed).noise3d`` gives at ``points``, bit for bit, for one seed after the other.

    A seed chooses the gradients at the lattice points, and nothing else. Which lattice points count for a point, and
    how much, the library is asked once, when this is made: for a world of Crafter that takes as long as making three.
    """

    def __init__(self, package: Any, points: Sequence[tuple[float, float, float]]) -> None:
        self._package = package
        seen: list[tuple[float, ...]] = []
        ends = [0]
        simplex = package.OpenSimplex(0)
        simplex._extrapolate3d = lambda *lattice: seen.append(lattice) or 0.0
        for point in points:
            simplex.noise3d(*point)
            ends.append(len(seen))
        counts = np.diff(ends)
        # Points with many neighbours first, so that those which have a third, a fourth, ... are the first ones too.
        order = np.argsort(-counts, kind="stable")
        self._place = np.argsort(order)
        starts, lattice = np.array(ends)[order], np.array(seen)
        self._neighbours = [
            _neighbours(lattice[starts[: np.count_nonzero(counts > nth)] + nth]) for nth in range(counts.max())
        ]

    def values(self, seed: int) -> np.ndarray:
        """One number for each point."""
        simplex = self._package.OpenSimplex(seed)
        corners = np.array(simplex._perm, np.uint8)
        gradients = np.array(self._package.opensimplex.GRADIENTS_3D, np.float64).reshape(-1, 3)
        along_x, along_y, along_z = gradients[np.array(simplex._perm_grad_index_3D) // 3].T.copy()
        total = np.zeros(len(self._place))
        for near in self._neighbours:
            # Indices of 8 bits overflow as the library's do where it cuts them to 8 bits.
            corner = corners[corners[near.x] + near.y] + near.z
            slope = along_x[corner] * near.dx + along_y[corner] * near.dy + along_z[corner] * near.dz
            total[: len(corner)] += near.weight * slope
        return (total / self._package.opensimplex.NORM_CONSTANT_3D)[self._place]


def _neighbours(lattice: np.ndarray) -> _Lattice:
    x, y, z = (lattice[:, :3].T.astype(np.int64) & 0xFF).astype(np.uint8)
    dx, dy, dz = lattice[:, 3:].T.copy()
    fall = 2.0 - dx * dx - dy * dy - dz * dz  # in the library's order: another one would round differently
    fall *= fall
    return _Lattice(x, y, z, dx, dy, dz, fall * fall)
