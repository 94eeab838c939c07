"""The sum tree against plain sums."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.buffers.sum_tree import SumTree

CPU = torch.device("cpu")
WEIGHTS = st.lists(st.sampled_from([0.0, 1e-9, 0.25, 1.0, 3.0, 1e6]), min_size=1, max_size=600)


@settings(max_examples=60, deadline=None)
@given(weights=WEIGHTS, data=st.data())
def test_sums_are_those_of_the_weights_after_any_changes(weights: list[float], data: st.DataObject) -> None:
    tree = SumTree(len(weights), CPU)
    tree.fill(torch.tensor(weights, dtype=torch.float64))
    for _ in range(3):
        places = data.draw(st.lists(st.integers(0, len(weights) - 1), min_size=1, max_size=8, unique=True))
        values = data.draw(st.lists(st.floats(0, 100), min_size=len(places), max_size=len(places)))
        tree.set(torch.tensor(places), torch.tensor(values))
        for place, value in zip(places, values, strict=True):
            weights[place] = float(np.float32(value))
    assert tree.weight.tolist() == weights
    assert float(tree.total) == pytest.approx(sum(weights), rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(weights=WEIGHTS.filter(any), points=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=20))
def test_a_point_falls_on_the_place_whose_weights_it_passes(weights: list[float], points: list[float]) -> None:
    tree = SumTree(len(weights), CPU)
    tree.fill(torch.tensor(weights, dtype=torch.float64))
    places = tree.drawn(torch.tensor(points, dtype=torch.float64)).tolist()
    sums, total = np.cumsum(weights), sum(weights)
    for point, place in zip(points, places, strict=True):
        assert weights[place] > 0
        before = sums[place] - weights[place]
        assert before - 1e-9 * total <= point * total <= sums[place] + 1e-9 * total


def test_places_are_drawn_in_proportion_to_their_weights() -> None:
    weights = torch.arange(300, dtype=torch.float64) % 7
    tree = SumTree(300, CPU)
    tree.fill(weights)
    points = torch.rand(200_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(tree.drawn(points), minlength=300).double()
    assert not counts[weights == 0].any()
    expected = (weights / weights.sum() * len(points))[weights > 0]
    statistic = float(((counts[weights > 0] - expected).square() / expected).sum())
    freedom = len(expected) - 1
    assert abs(statistic - freedom) < 4 * (2 * freedom) ** 0.5
