"""Plans in kernels of their own are those of torch's operations, and can be compiled for the GPU they are for."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_tdmpc import CLASSES, small_tdmpc
from triton_scripts import needs_triton, said

from reverie.components.controllers.plan_layers import can_be_layers
from reverie.runtime.device import RuntimeConfig
from reverie.types import ReverieError

EXACT = (
    "two iterations",
    "greedy",
    "cautious",
    "nothing is a multiple of a tile",
    "long sums",
    "after an update",
)


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, float]]:
    return said("plans_by_interpreter.py", TRITON_INTERPRET="1")


@needs_triton
@pytest.mark.parametrize("name", EXACT)
def test_actions_and_means_are_those_of_torch(found: dict[str, dict[str, float]], name: str) -> None:
    allowed = 1e-3 if name == "long sums" else 1e-5  # its returns are of the order of 1e4
    assert found[name]["action"] < allowed
    assert found[name]["mean"] < allowed


@needs_triton
def test_narrow_types_are_rounded_at_nearly_the_same_places(found: dict[str, dict[str, float]]) -> None:
    assert 1e-6 < found["in float16"]["mean"] < 0.005


@needs_triton
def test_another_choice_among_the_best_is_another_action(found: dict[str, dict[str, float]]) -> None:
    assert found["greedy"]["other choice"] > 0.01


@needs_triton
@pytest.mark.long
def test_they_can_be_compiled_for_a_hopper_gpu(tmp_path: Path) -> None:
    compiled = said("plans_compiled.py", TRITON_CACHE_DIR=str(tmp_path))
    kinds = ("layer", "action", "returns", "rank", "draw", "choice")
    assert {name.split()[0] for name in compiled} == {f"{kind}_kernel" for kind in kinds}
    # A program must fit: 227 KB of shared memory; and in bfloat16 its products are the matrix units'.
    assert max(one["shared_bytes"] for one in compiled.values()) < 227 * 1024
    products = [one for name, one in compiled.items() if name.startswith("layer_kernel torch.bfloat16")]
    assert min(one["mma"] for one in products) > 0


@pytest.mark.parametrize(
    "overrides",
    [
        ("workflow.episodic=true",),
        ("components.dynamics.network.simnorm_dim=null",),
        ("components.reward_head.network.units=24",),
        ("components.reward_head.form.bins=51",),
        ("components.reward_head.form.low=-5",),
        ("components.dynamics.network.simnorm_dim=6", "size.latent_dim=24"),
        ("components=tdmpc1", "controller=tdmpc1", "workflow=tdmpc1"),
    ],
)
def test_other_networks_are_left_to_the_compiler(overrides: tuple[str, ...]) -> None:
    assert can_be_layers(small_tdmpc().model)
    assert not can_be_layers(small_tdmpc(*overrides).model)


def test_discrete_actions_are_left_to_the_compiler() -> None:
    assert not can_be_layers(small_tdmpc(spaces=CLASSES).model)


def test_an_unknown_way_is_refused() -> None:
    with pytest.raises(ReverieError, match=r"`runtime.plans` must be one of compiled, fused, got fast"):
        RuntimeConfig(plans="fast")
