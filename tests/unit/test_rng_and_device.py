"""Random streams with names, and the choice of a device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.runtime import device
from reverie.runtime.device import RuntimeConfig, chosen_device, prepare_torch
from reverie.runtime.rng import RandomStreams, derived_seed
from reverie.types import ReverieError

CPU = torch.device("cpu")


def test_a_seed_depends_on_all_three_and_on_nothing_else() -> None:
    # Written down, so that it is the same in every process and version, whatever Python's hash seed.
    assert derived_seed(0, "replay") == 9155865189592773976
    assert len({derived_seed(seed, name, rank) for seed in range(5) for name in "abc" for rank in range(4)}) == 60


@given(st.integers(0, 2**70), st.text(max_size=20), st.integers(0, 10_000))
def test_a_seed_fits_into_63_bits(seed: int, name: str, rank: int) -> None:
    assert 0 <= derived_seed(seed, name, rank) < 2**63


def draws(streams: RandomStreams, name: str, count: int = 4) -> list[float]:
    return torch.rand(count, generator=streams.stream(name)).tolist()


def test_streams_do_not_shift_each_other() -> None:
    one, other = RandomStreams(0, device=CPU), RandomStreams(0, device=CPU)
    draws(one, "noise", 1000)
    assert draws(one, "replay") == draws(other, "replay")
    assert draws(one, "replay") != draws(one, "noise")
    assert one.stream("replay") is one.stream("replay")


def test_streams_differ_by_seed_and_rank() -> None:
    first = [draws(RandomStreams(seed, device=CPU, rank=rank), "x") for seed in (0, 1) for rank in (0, 1)]
    assert len({tuple(values) for values in first}) == 4


def test_restored_streams_go_on_and_one_that_was_not_saved_begins() -> None:
    one = RandomStreams(0, device=CPU)
    draws(one, "replay")
    state = one.get_state()
    expected = draws(one, "replay")
    other = RandomStreams(0, device=CPU)
    held = other.stream("replay")
    other.set_state(state)
    assert draws(other, "replay") == expected
    assert other.stream("replay") is held, "whoever holds the generator keeps it"
    assert draws(other, "late") == draws(RandomStreams(0, device=CPU), "late")
    assert state.keys() == {"replay"}


def test_the_global_generator_stays_untouched() -> None:
    before = torch.get_rng_state()
    draws(RandomStreams(0, device=CPU), "replay")
    assert torch.equal(torch.get_rng_state(), before)


# Device


def test_auto_takes_cuda_only_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert chosen_device("auto") == CPU
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert chosen_device("auto") == torch.device("cuda")


@pytest.mark.parametrize(("name", "count", "is_fine"), [("cuda", 1, True), ("cuda:1", 2, True), ("cpu", 0, True)])
def test_a_device_that_exists_is_taken(name: str, count: int, is_fine: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    assert (chosen_device(name) == torch.device(name)) is is_fine


@pytest.mark.parametrize(("name", "count"), [("cuda", 0), ("cuda:1", 1), ("cuda:7", 2)])
def test_a_device_that_is_not_there_is_refused(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    with pytest.raises(ReverieError, match=rf"'{name}'.*{count} CUDA"):
        chosen_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:x", "", "meta", "mps"])
def test_a_name_that_is_no_device_is_refused(name: str) -> None:
    with pytest.raises(ReverieError, match="auto, cpu, cuda or cuda:N"):
        chosen_device(name)


@pytest.fixture
def torch_settings() -> Iterator[None]:
    threads, mode = torch.get_num_threads(), torch.get_deterministic_debug_mode()
    yield
    torch.set_num_threads(threads)
    torch.set_deterministic_debug_mode(mode)
    torch.autograd.set_detect_anomaly(False)
    torch.set_flush_denormal(False)


@pytest.mark.usefixtures("torch_settings")
def test_torch_is_set_as_the_configuration_says() -> None:
    prepare_torch(RuntimeConfig(threads=2, is_deterministic=True, finds_anomalies=True), CPU)
    assert torch.get_num_threads() == 2
    assert torch.are_deterministic_algorithms_enabled()
    assert torch.is_anomaly_enabled()
    prepare_torch(RuntimeConfig(threads=1, is_deterministic=False), CPU)
    assert torch.get_num_threads() == 1
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_anomaly_enabled()


def test_no_threads_are_refused() -> None:
    with pytest.raises(ReverieError, match=r"runtime\.threads"):
        RuntimeConfig(threads=0)


def test_compiling_without_triton_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "HAS_TRITON", False)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    with pytest.raises(ReverieError, match=r"runtime.compiles_steps=true needs Triton on a CUDA device"):
        prepare_torch(RuntimeConfig(compiles_steps=True), torch.device("cuda"))


def test_a_stream_of_another_kind_of_device_begins_anew() -> None:
    """The state of a CUDA generator has sixteen bytes; a run may go on without the GPU it was begun on."""
    streams, fresh = (RandomStreams(3, device=torch.device("cpu")) for _ in range(2))
    streams.set_state({"act": torch.zeros(16, dtype=torch.uint8)})
    assert torch.equal(streams.stream("act").get_state(), fresh.stream("act").get_state())
