"""What a row takes, how many of them a run keeps, where they go, and what is said when they fit nowhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from reverie.build import assemble, phases_of
from reverie.commands.composition import composed
from reverie.orchestration.parts import Parts
from reverie.orchestration.phases import PhaseSpec
from reverie.orchestration.replay_memory import (
    Free,
    Need,
    RowBytes,
    agent_bytes,
    chosen_home,
    collected_rows,
    refuse_large_checkpoints,
    refuse_without_disk,
    row_bytes,
)
from reverie.types import ReverieError

SMALL = ("experiment=dreamer_cartpole", "size=debug", "training.total_timesteps=5000", "environment.in_workers=false")
CPU, GPU = torch.device("cpu"), torch.device("cuda")
GIB = 2**30
NEED = Need(name="replay", capacity=2 * GIB, rows=GIB, width=RowBytes(row=3, stored=1))
"""4 GiB as the run fills it in memory, 8 at once on a GPU, 3 of rows and 2 of latents on a disk."""


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[tuple[PhaseSpec, ...], Parts]]:
    config = composed("gym_CartPole-v1", [*SMALL, "buffer.replay.capacity=8000", "buffer.evaluation.capacity=1000"])
    parts = assemble(config, device=CPU, allow=None)
    yield phases_of(config), parts
    parts.close()


def free(*, cuda: float | None = None, host: float | None = 100, disk: float | None = 100) -> Free:
    """In GiB."""
    return Free(**{name: None if size is None else int(size * GIB) for name, size in locals().items()})


def test_a_row_is_measured_without_a_trace(made: tuple[tuple[PhaseSpec, ...], Parts]) -> None:
    """CartPole at `size=debug`: four floats, reward, flags, an action; eight halves of deter, two classes of stoch.
    In memory they are whole words."""
    parts = made[1]
    policy = parts.workflow.policy(None)
    before = parts.rng.get_state()
    found = row_bytes(policy, parts.train_env.spaces, parts.rng, CPU)
    assert found == RowBytes(row=32, stored=24)
    after = parts.rng.get_state()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_rows_that_the_run_collects_count(made: tuple[tuple[PhaseSpec, ...], Parts]) -> None:
    assert collected_rows("replay", made[0], 8000) == 5000
    assert collected_rows("replay", made[0], 4000) == 4000
    assert collected_rows("evaluation", made[0], 1000) == 1000


def test_the_choice_is_stored_and_said(made: tuple[tuple[PhaseSpec, ...], Parts]) -> None:
    (remark,) = made[1].remarks
    assert remark.startswith("Replay (replay) is kept in memory: 0.3 MiB (5,000 rows of 56 bytes), and ")


@pytest.mark.parametrize(
    ("device", "room", "home"),
    [
        (GPU, free(cuda=14), "cuda"),  # 8 of 14: no more than 0.6 of it
        (GPU, free(cuda=13), "host"),
        (GPU, free(cuda=13, host=4.9), "disk"),  # 4 of 4.9: no more than 0.8
        (CPU, free(), "host"),
        (CPU, free(host=None), "host"),  # the system does not say: then nothing is known against it
        (CPU, free(host=4.9), "disk"),
    ],
)
def test_auto_takes_the_fastest_place_with_room(device: torch.device, room: Free, home: str) -> None:
    found = chosen_home(NEED, "auto", room, device)
    assert found.name == home
    assert ("2,147,483,648" if home == "cuda" else "1,073,741,824") + " rows of " in found.reason


def test_the_reason_names_what_was_too_small() -> None:
    reason = chosen_home(NEED, "auto", free(cuda=13, host=4.9), GPU).reason
    assert reason.endswith(
        "and 100.0 GiB are free; too little is free elsewhere (13.0 GiB on the GPU, 4.9 GiB in memory)."
    )


@pytest.mark.parametrize(
    ("asked", "room", "expected"),
    [
        (
            "cuda",
            free(cuda=7.9),
            r"needs 8\.0 GiB \(.*\) for this run, but free are 7\.9 GiB on the GPU; set .*device=disk, or ",
        ),
        (
            "host",
            free(host=3.9, disk=1),
            r"needs 4\.0 GiB .* free are 3\.9 GiB in memory; set .*capacity to at most \d",
        ),
        (
            "auto",
            free(cuda=1, host=1, disk=1),
            r".* free are 1\.0 GiB on the GPU, 1\.0 GiB in memory, 1\.0 GiB on disk; ",
        ),
    ],
)
def test_what_fits_nowhere_is_refused_with_numbers(asked: str, room: Free, expected: str) -> None:
    with pytest.raises(ReverieError, match=r"capacity of 2,147,483,648 rows " + expected):
        chosen_home(NEED, asked, room, GPU)


@pytest.mark.parametrize("asked", ["auto", "cuda", "host", "disk"])
def test_the_capacity_that_is_named_does_fit(asked: str) -> None:
    room = free(cuda=1, host=1, disk=1)
    with pytest.raises(ReverieError) as refused:
        chosen_home(NEED, asked, room, GPU)
    most = int(str(refused.value).rpartition("at most ")[2].rstrip(".").replace(",", ""))
    smaller = Need(name="replay", capacity=most, rows=most, width=NEED.width)
    assert chosen_home(smaller, asked, room, GPU).name == ("disk" if asked == "auto" else asked)


@pytest.mark.parametrize("asked", ["cuda", "host", "disk"])
def test_a_named_place_is_taken_to_the_last_byte(asked: str) -> None:
    room = free(cuda=8, host=4, disk=5)
    assert chosen_home(NEED, asked, room, GPU).name == asked


def test_what_one_buffer_takes_is_gone_for_the_next() -> None:
    left = free(cuda=10, host=20).without("cuda", 4 * GIB)
    assert (left.cuda, left.host) == (6 * GIB, 20 * GIB)
    assert free(cuda=1).without("cuda", 4 * GIB).cuda == 0


def test_room_is_asked_for_where_the_run_will_be(tmp_path: Path) -> None:
    found = Free.now(CPU, tmp_path / "not" / "made" / "yet")
    assert found.cuda is None
    assert found.disk is not None
    assert found.disk > 0


def write_files(folder: Path, sizes: Mapping[str, int]) -> None:
    for name, size in sizes.items():
        file = folder / f"{name}.safetensors"
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(size))


def test_what_a_run_has_on_disk_already_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1000))
    write_files(tmp_path, {"replay/replay/0": 234, "checkpoints/1/arrays": 30, "checkpoints/2/arrays": 6})
    assert Free.now(CPU, tmp_path).disk == 1270
    assert Free.now(CPU, tmp_path / "new").disk == 1000


def test_checkpoints_count_where_they_lie_beside_the_rows() -> None:
    copies = Need(name="replay", capacity=20, rows=10, width=RowBytes(row=3, stored=1), copies=3)
    assert copies.bytes_in("disk") == 10 * 3 + 20 * 1 + 3 * 10 * 1
    assert copies.bytes_in("host") == 10 * 4


def test_rows_in_memory_need_room_for_checkpoints_too(tmp_path: Path) -> None:
    refuse_without_disk(NEED, free(disk=3), tmp_path)
    refuse_without_disk(NEED, free(disk=None), tmp_path)
    with pytest.raises(
        ReverieError, match=r"of `buffer.replay`, 3.0 GiB for this run, but 2.0 GiB .* at most 715,827,882"
    ):
        refuse_without_disk(NEED, free(disk=2), tmp_path)


def test_a_run_that_goes_on_is_told_what_it_can_still_change(tmp_path: Path) -> None:
    with pytest.raises(ReverieError, match=r"in memory; set buffer.replay.device=disk, or make room there\.$"):
        chosen_home(NEED, "host", free(host=1), CPU, is_resumed=True)
    with pytest.raises(ReverieError, match=r"2\.0 GiB are free in .*; make room there\.$"):
        refuse_without_disk(NEED, free(disk=2), tmp_path, is_resumed=True)


def test_networks_in_checkpoints_need_room_too(made: tuple[tuple[PhaseSpec, ...], Parts], tmp_path: Path) -> None:
    workflow = made[1].workflow
    learning = sum(p.numel() for module in workflow.modules().values() for p in module.parameters() if p.requires_grad)
    each = agent_bytes(workflow)
    assert 3 * 4 * learning < each < 4 * 4 * learning  # weights, two moments, and the slow critic
    refuse_large_checkpoints(GIB, 3, free(disk=3), tmp_path)
    with pytest.raises(ReverieError, match=r"3 of them, .* of 1\.0 GiB, need 3\.0 GiB, but 2\.0 GiB are free"):
        refuse_large_checkpoints(GIB, 3, free(disk=2), tmp_path)


def test_a_run_whose_checkpoints_do_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Free, "now", classmethod(lambda cls, *_: free(disk=1e-6)))
    with pytest.raises(ReverieError, match="checkpoints will not fit"):
        assemble(composed("gym_CartPole-v1", [*SMALL, "buffer.device=host"]), device=CPU, allow=None)


def test_a_run_that_was_let_in_may_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows and two checkpoints are on the disk by then, and a third comes before the first of them goes."""
    need = Need(name="replay", capacity=100, rows=100, width=RowBytes(row=3, stored=5), copies=3)
    write_files(tmp_path, {"replay/replay/0": 300, "checkpoints/1/arrays": 500, "checkpoints/2/arrays": 500})
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=500))
    refuse_without_disk(need, Free.now(CPU, tmp_path), tmp_path)
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=499))
    with pytest.raises(ReverieError, match="checkpoints will not fit"):
        refuse_without_disk(need, Free.now(CPU, tmp_path), tmp_path)
