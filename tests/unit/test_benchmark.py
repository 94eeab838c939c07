"""The arithmetic of a benchmark, and that the parts of an update are the whole of it: in products, not in time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch._dynamo.backends.debugging import eager as uncompiled

from reverie import benchmark
from reverie.benchmark import (
    SPACES,
    Conditions,
    UpdateSpeed,
    counted_flops,
    fastest_call,
    peak_flops_per_second,
    update_speed,
    with_other,
)
from reverie.commands.composition import composed_run
from reverie.rehearsal import Rehearsal, rehearsal
from reverie.runtime.compilation import use_compiled_steps
from reverie.types import ReverieError
from reverie.workflows.random_policy import RandomPolicyWorkflow
from reverie.workflows.update_parts import HasParts, Part

SPEED = UpdateSpeed(
    size="12m",
    observations="image",
    pictures=1,
    actions="discrete",
    precision="bfloat16",
    is_captured=True,
    is_compiled=True,
    calls=100,
    ms_per_update=20.0,
    seconds_to_first_update=3.0,
    seconds_to_captured=30.0,
    parameters=10,
    peak_memory_bytes=1,
    flops_per_update=2 * 10**12,
    peak_flops_per_second=1e15,
)
SMALL = ("runtime=cpu", "size=debug", "training.batch_size=2", "training.batch_length=4", "workflow.horizon=3")
FEW_TDMPC = ("runtime=cpu", "size=debug", "training.batch_size=2", "workflow.plans=false")
V3 = ("encoder", "observe", "model_losses", "imagination", "actor_critic", "optimizer")


def made(form: str, observations: str, *overrides: str) -> Rehearsal:
    groups = [f"{group}=dreamer_{form}" for group in ("components", "controller", "workflow")]
    config = composed_run(["experiment=dreamer_atari100k", *SMALL, *groups, *overrides])
    return rehearsal(config, spaces=SPACES[observations], device=torch.device("cpu"), streams=4, rows=64)


def parts_of(run: Rehearsal) -> dict[str, Part]:
    assert isinstance(run.workflow, HasParts)
    return run.workflow.update_parts(run.update.drawn(), phase=run.update.phase)


def test_utilisation_is_arithmetic_over_time_over_peak() -> None:
    assert SPEED.updates_per_second == 50
    assert SPEED.utilisation == pytest.approx(2e12 / 0.020 / 1e15)
    assert replace(SPEED, peak_flops_per_second=None).utilisation is None


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100 80GB PCIe", 312),
        ("NVIDIA GeForce RTX 4090", 165),
        ("NVIDIA GeForce RTX 3090", 71),
    ],
)
def test_the_peak_of_a_known_device(name: str, teraflops: float) -> None:
    assert peak_flops_per_second(name) == teraflops * 1e12


@pytest.mark.parametrize(
    "name",
    [
        "cpu",
        "NVIDIA H100 PCIe",
        "NVIDIA H200 NVL",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 3090 Ti",
    ],
)
def test_the_peak_of_another_device_is_not_guessed(name: str) -> None:
    assert peak_flops_per_second(name) is None


def test_the_best_of_four_loops_counts() -> None:
    events: list[str] = []
    times = iter([0.0, 9.0, 10.0, 14.0, 20.0, 27.0, 30.0, 35.0])

    def clock() -> float:
        events.append("clock")
        return next(times)

    best = fastest_call(lambda: events.append("call"), calls=2, wait=lambda: events.append("wait"), clock=clock)
    assert best == 4.0 / 2 * 1000
    assert events == ["wait", "clock", "call", "call", "wait", "clock"] * 4, "the device is waited for before each look"


def test_what_the_parts_do_not_explain_is_other() -> None:
    assert with_other({"one": 3.0, "two": 4.0}, 10.0) == {"one": 3.0, "two": 4.0, "other": 3.0}
    assert with_other({"one": 3.0, "two": 4.0}, 6.0)["other"] == -1.0


@pytest.mark.parametrize("observations", sorted(SPACES))
def test_the_products_of_the_parts_are_those_of_an_update(observations: str) -> None:
    run = made("v3", observations)
    whole = counted_flops(run.update)
    found = {name: counted_flops(part) for name, part in parts_of(run).items()}
    assert tuple(found) == V3
    assert whole > 0
    assert sum(found.values()) == whole
    assert found["optimizer"] == 0
    assert all(found[name] > 0 for name in V3 if name != "optimizer")


@pytest.mark.parametrize("form", ["v1", "v2"])
def test_an_actor_that_learns_through_its_dreams_dreams_in_its_own_part(form: str) -> None:
    run = made(form, "vector")
    whole = counted_flops(run.update)
    found = {name: counted_flops(part) for name, part in parts_of(run).items()}
    assert "imagination" not in found
    assert sum(found.values()) == whole


@pytest.mark.parametrize("observations", ["vector", "image"])
def test_the_products_of_the_parts_of_tdmpc_are_those_of_an_update(observations: str) -> None:
    config = composed_run(["experiment=tdmpc_dmc_vision", *FEW_TDMPC])
    run = rehearsal(config, spaces=SPACES[observations], device=torch.device("cpu"), streams=4, rows=64)
    found = {name: counted_flops(part) for name, part in parts_of(run).items()}
    assert tuple(found) == ("targets", "model", "policy", "probe", "optimizers")
    assert sum(found.values()) == counted_flops(run.update) > 0


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Steps are traced and guarded as on a GPU, and then run as they are."""
    compile_with = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function, **given: compile_with(function, backend=uncompiled, **given))
    torch.compiler.reset()
    yield
    use_compiled_steps(is_on=False)
    torch.compiler.reset()


def test_parts_run_in_compiled_steps_and_lowered_precision_too(traced: None) -> None:
    run = made("v3", "vector", "runtime.precision=bfloat16", "size.blocks=4")
    use_compiled_steps(is_on=True)
    run.update()
    for part in parts_of(run).values():
        part()
        part()


@pytest.mark.parametrize("wants_memory", [True, False])
def test_a_recording_without_memory_is_a_size_that_does_not_fit(
    wants_memory: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = ReverieError("'update' cannot be captured in a CUDA graph")
    error.__cause__ = torch.OutOfMemoryError("CUDA out of memory.") if wants_memory else RuntimeError("asked")
    monkeypatch.setattr("reverie.benchmark._measured", mock.Mock(side_effect=error))
    config = composed_run(["experiment=dreamer_atari100k", *SMALL])
    with pytest.raises(ReverieError, match=r"does not fit in the memory" if wants_memory else "cannot be captured"):
        update_speed(config, Conditions(size="debug", observations="vector", calls=1))


def test_a_measurement_leaves_the_configuration_as_it_was() -> None:
    config = composed_run(["experiment=dreamer_atari100k", *SMALL])
    speed = update_speed(config, Conditions(size="debug", observations="vector", calls=1, has_parts=True))
    assert config["_dims"] == {}
    assert speed.ms_per_part is not None
    assert tuple(speed.ms_per_part) == ("replay", *V3, "other")
    assert sum(speed.ms_per_part.values()) == pytest.approx(speed.ms_per_update)
    assert speed.seconds_to_captured is None
    assert speed.parameters == sum(
        one.numel()
        for module in made("v3", "vector").workflow.modules().values()
        for one in module.parameters()
        if one.requires_grad
    )


def test_pictures_are_stacked_as_the_experiment_does_and_actions_are_those_asked_for() -> None:
    spaces = Conditions(size="debug", observations="mixed", actions="continuous", calls=1).spaces(pictures=3)
    assert spaces.obs["image"].shape == (64, 64, 9)
    assert spaces.obs["vector"] == SPACES["mixed"].obs["vector"]
    assert spaces.action == SPACES["vector"].action
    for observations, found in SPACES.items():
        assert Conditions(size="debug", observations=observations, calls=1).spaces(pictures=1) == found


@pytest.mark.parametrize(
    ("observations", "pictures", "actions"), [("image", 3, "continuous"), ("vector", 0, "discrete")]
)
def test_tdmpc_is_measured_with_what_it_sees(observations: str, pictures: int, actions: str) -> None:
    config = composed_run(["experiment=tdmpc_dmc_vision", *FEW_TDMPC])
    speed = update_speed(config, Conditions(size="debug", observations=observations, actions=actions, calls=1))
    assert (speed.pictures, speed.actions) == (pictures, actions)
    assert speed.flops_per_update > 0
    single = composed_run(["experiment=tdmpc_dmc_vision", *FEW_TDMPC, "environment.simulator.frame_stack=1"])
    other = update_speed(single, Conditions(size="debug", observations=observations, actions=actions, calls=1))
    assert (speed.parameters > other.parameters) == (pictures > 1)


def test_an_algorithm_without_parts_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "HasParts", RandomPolicyWorkflow)
    config = composed_run(["experiment=dreamer_atari100k", *SMALL])
    with pytest.raises(ReverieError, match="the update of Dreamer cannot be measured in parts: leave out --parts"):
        update_speed(config, Conditions(size="debug", observations="vector", calls=1, has_parts=True))
