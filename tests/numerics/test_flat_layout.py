"""Parameters of an optimiser lie in one vector, and each at an address that is as aligned as if it stood alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from reverie.commands.composition import composed
from reverie.rehearsal import rehearsal
from reverie.runtime.adam import Adam
from reverie.runtime.flat_layout import FlatLayout
from reverie.runtime.optimizer import LaProp
from reverie.types import Space, Spaces

READ_AT_ONCE = 16
"""Bytes: what kernels that were compiled for aligned parameters read."""
SHAPES = [(1,), (3, 5), (16,), (255,), (), (4, 4), (0,), (7, 3, 2)]
OPTIMIZERS = (LaProp, Adam)


def tensors() -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=rng) for shape in SHAPES]


@pytest.fixture
def fresh_memory_is_no_number(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_deterministic_debug_mode()
    monkeypatch.setattr(torch.utils.deterministic, "fill_uninitialized_memory", True)
    torch.set_deterministic_debug_mode("warn")
    assert torch.empty(3).isnan().all()
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.usefixtures("fresh_memory_is_no_number")
def test_a_vector_holds_its_tensors_and_zeros_between_them() -> None:
    given = tensors()
    layout = FlatLayout(given)
    flat = layout.joined([one.T.contiguous().T if one.dim() == 2 else one for one in given])
    places = layout.places(flat)
    assert all(torch.equal(place, one) for place, one in zip(places, given, strict=True))
    assert len({place.untyped_storage().data_ptr() for place in places}) == 1
    assert len(flat) == sum(layout.spans)
    assert torch.count_nonzero(flat) == sum(int(torch.count_nonzero(one)) for one in given)
    assert not any(start * flat.element_size() % READ_AT_ONCE for start, _ in layout.pieces)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_every_parameter_is_aligned_and_learns(kind: type[LaProp] | type[Adam]) -> None:
    parameters = {str(number): nn.Parameter(one) for number, one in enumerate(tensors())}
    optimizer = kind(parameters, learning_rate=0.1)
    before = {name: one.detach().clone() for name, one in parameters.items()}
    for _ in range(3):
        metrics = optimizer.apply([torch.ones_like(one) for one in parameters.values()])
        assert metrics["skipped"] == 0
    assert not any(one.data_ptr() % READ_AT_ONCE for one in parameters.values())
    assert all((one < before[name]).all() for name, one in parameters.items())
    mean = optimizer.get_state()["mean"]
    assert {name: one.shape for name, one in mean.items()} == {name: one.shape for name, one in parameters.items()}
    numbers = sum(one.numel() for one in parameters.values())
    for flat in (optimizer._weight, optimizer._mean, optimizer._square):
        assert torch.count_nonzero(flat) == numbers, "what fills up the vector stays zero"


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["vector", "image"])
def test_no_part_of_an_agent_lies_elsewhere_because_of_what_is_in_front_of_it(kind: str, width: int) -> None:
    """Outputs for odd numbers of classes, channels and bins lie between the others."""
    space = Space(shape=(width,), dtype="float32") if kind == "vector" else Space(shape=(16, 16, width), dtype="uint8")
    spaces = Spaces(obs={kind: space}, action=Space(shape=(), dtype="int64", classes=3))
    sizes = ["size=debug", "size.blocks=4", "size.depth=4"]
    config = composed("gym_CartPole-v1", ["experiment=dreamer_cartpole", *sizes])
    agent = rehearsal(config, spaces=spaces, device=torch.device("cpu"), streams=2, rows=32).workflow
    found = {f"{part}.{name}": one for part, m in agent.modules().items() for name, one in m.named_parameters()}
    assert len({one.untyped_storage().data_ptr() for one in found.values()}) < len(found) / 2, "most share one vector"
    assert [name for name, one in found.items() if one.data_ptr() % READ_AT_ONCE] == []
