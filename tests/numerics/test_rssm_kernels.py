"""Kernels of DreamerV3's walk compute what torch's operations compute, and can be compiled for the GPU they are for."""

from __future__ import annotations

from pathlib import Path

import pytest
from triton_scripts import needs_triton, said

pytestmark = needs_triton

EXACT = (
    "small",
    "one step",
    "one block",
    "nothing is a multiple of a tile",
    "many classes",
    "one class",
    "most likely classes",
    "sums in one piece",
    "sums in pieces",
    "pieces that are not alike",
    "wide tiles",
    "deep tiles",
)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    return said("kernels_by_interpreter.py", TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", EXACT)
def test_results_and_gradients_are_those_of_torch(found: dict[str, dict[str, float]], name: str) -> None:
    assert len(found[name]) == 20
    assert {key: value for key, value in found[name].items() if not value < 1e-5} == {}


def test_narrow_types_are_rounded_at_nearly_the_same_places(found: dict[str, dict[str, float]]) -> None:
    assert found["in float16"]["stoch"] == 0
    assert 1e-5 < max(found["in float16"].values()) < 0.005


def test_gates_that_are_split_across_blocks_are_noticed(found: dict[str, dict[str, float]]) -> None:
    assert max(found["beside gates split across blocks"].values()) > 0.1
    assert max(found["beside the same with one block"].values()) < 1e-5


@pytest.mark.long
def test_they_can_be_compiled_for_a_hopper_gpu(tmp_path: Path) -> None:
    compiled = said("kernels_compiled.py", TRITON_CACHE_DIR=str(tmp_path))
    # The same once more where sums over ``deter`` are cut into pieces, with the two launches that add these up.
    assert len(compiled) == 2 * (13 + 13 + 2) + 13 + 2
    # A program must fit: 227 KB of shared memory; and in bfloat16 its products are the matrix units'.
    assert max(one["shared_bytes"] for one in compiled.values()) < 227 * 1024
    sums = ("whole_kernel", "shared_slope_kernel")
    products = [one for name, one in compiled.items() if "bfloat16" in name and not name.startswith(sums)]
    assert min(one["mma"] for one in products) > 0
