"""The guard around updates: what it counts, when it copies, when it stops a run, and what the black box then holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from reverie.orchestration.black_box import BlackBox, read_black_box
from reverie.orchestration.logger import Counters
from reverie.orchestration.update_guard import RECENT_UPDATES, UpdateGuard
from reverie.runtime.rng import RandomStreams
from reverie.types import Batch, Phase, ReverieError, RowIndex, RunStoppedError, State
from reverie.workflows.base import WorldModelWorkflow

CPU = torch.device("cpu")


class Weights:
    """A workflow as the guard sees it: something with state. Counts how often it is copied."""

    def __init__(self) -> None:
        self.weight = torch.zeros(2)
        self.copies = 0

    def get_state(self) -> State:
        self.copies += 1
        return {"weight": self.weight.clone()}


class Loop:
    """Updates by hand. Each one adds its number to the weight, good or bad, and draws from a stream."""

    def __init__(self, run: Path, *, limit: int = 3, lag: int = 0) -> None:
        self.weights = Weights()
        self.rng = RandomStreams(0, device=CPU)
        self.said: list[str] = []
        self.updates = 0
        self.guard = UpdateGuard(
            cast(WorldModelWorkflow, self.weights),
            self.rng,
            device=CPU,
            limit=limit,
            black_box=BlackBox(run, config={"task": "none"}),
            say=self.said.append,
        )
        self.guard._lag = lag

    def update(self, metrics: dict[str, float], hook: str = "update") -> None:
        phase = Phase(name="learn", type="online", progress=torch.tensor(0.25))
        batch = made_batch(float(self.updates))
        self.guard.prepare(hook, phase)
        self.weights.weight += self.updates
        torch.rand(3, generator=self.rng.stream("update"))
        told = {name: torch.tensor(value) for name, value in metrics.items()}
        counters = Counters(agent_steps=7, env_frames=7, updates=self.updates, wall_seconds=0.0)
        self.updates += 1
        self.guard.judge(hook, batch, told, counters)

    def go(self, flags: str) -> None:
        """``x`` is a skipped update, anything else a good one."""
        for flag in flags:
            self.update({"loss": 1.0, "skipped": float(flag == "x")})


def made_batch(value: float) -> Batch:
    flags = torch.zeros(1, 2, dtype=torch.bool)
    return Batch(
        obs={"vector": torch.full((1, 2, 3), value)},
        reward=torch.zeros(1, 2),
        is_first=flags,
        is_last=flags,
        is_terminal=flags,
        action=torch.zeros(1, 2, dtype=torch.int64),
        index=RowIndex(stream=torch.zeros(1, dtype=torch.int64), row=torch.zeros(1, 2, dtype=torch.int64)),
    )


def test_good_updates_reset_the_count_and_the_total_goes_on(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.go("xx.x.xx.")
    assert loop.guard.get_state() == {"total": 5, "in_a_row": {"update": 0}}
    assert len(loop.said) == 1
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_copied_before_it_may_be_needed(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.go("..x..xx.")
    assert loop.weights.copies == 1  # before the update after the two in a row
    always = Loop(tmp_path, limit=1)
    always.go("...")
    assert always.weights.copies == 3


def test_the_last_update_of_a_run_is_looked_at_too(tmp_path: Path) -> None:
    loop = Loop(tmp_path, lag=1)
    loop.go("xxx")
    with pytest.raises(RunStoppedError, match="3 updates in a row"):
        loop.guard.finish()


@pytest.mark.parametrize("lag", [0, 1])
def test_the_black_box_holds_what_the_last_skipped_update_started_from(tmp_path: Path, lag: int) -> None:
    loop = Loop(tmp_path, lag=lag)
    loop.go(".xx")
    weight, stream = loop.weights.weight.clone(), loop.rng.get_state()["update"]
    with pytest.raises(RunStoppedError, match=r"3 updates in a row \(hook update\).*reverie replay-update") as stop:
        loop.go("x" + "." * lag)  # with a lag the host hears of it one update later
    (folder,) = (tmp_path / "blackbox").iterdir()
    assert folder.name == "0000000007-0000000003"
    assert str(folder) in str(stop.value)
    box = read_black_box(folder)
    assert torch.equal(box["workflow"]["weight"], weight)
    assert torch.equal(box["random_streams"]["update"], stream)
    assert torch.equal(box["batch"]["obs"]["vector"], torch.full((1, 2, 3), 3.0))
    assert (box["hook"], box["agent_steps"], box["updates"]) == ("update", 7, 3)
    assert box["phase"] == {"name": "learn", "type": "online", "progress": Tensor([0.25]).squeeze(), "controller": None}
    assert box["config"] == {"task": "none"}
    assert box["metrics"][3] == {"updates": 3, "loss": 1.0, "skipped": 1.0}
    assert box["versions"]["torch"]


def test_hooks_are_counted_by_themselves(tmp_path: Path) -> None:
    """A controller that always fails must not hide behind a world model that never does."""
    loop = Loop(tmp_path, limit=2)
    loop.update({"skipped": 1.0}, "update_controller")
    loop.update({"skipped": 0.0}, "update_world_model")
    with pytest.raises(RunStoppedError, match="hook update_controller"):
        loop.update({"skipped": 1.0}, "update_controller")


@pytest.mark.parametrize("name", ["actor/skipped", "skipped/actor", "skipped"])
def test_one_of_several_optimisers_is_enough(tmp_path: Path, name: str) -> None:
    loop = Loop(tmp_path)
    loop.update({"model/skipped": 0.0, name: 1.0})
    assert loop.guard.total() == 1


def test_a_workflow_without_an_optimiser_is_not_counted(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.update({"loss": 1.0, "frames_skipped": 1.0})
    assert not loop.guard.has_counted


def test_the_counts_survive_a_resume(tmp_path: Path) -> None:
    one, other = Loop(tmp_path), Loop(tmp_path)
    one.go(".xx")
    other.guard.set_state(one.guard.get_state())
    with pytest.raises(RunStoppedError):
        other.go("x")
    assert read_black_box(next((tmp_path / "blackbox").iterdir()))["updates"] == 0


def test_the_metrics_of_the_last_updates_are_kept_and_no_more(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.go("." * 2 * RECENT_UPDATES)
    with pytest.raises(RunStoppedError):
        loop.go("xxx")
    metrics: list[dict[str, Any]] = read_black_box(next((tmp_path / "blackbox").iterdir()))["metrics"]
    assert [line["updates"] for line in metrics] == list(range(RECENT_UPDATES + 3, 2 * RECENT_UPDATES + 3))


def test_a_second_stop_at_the_same_update_replaces_the_folder(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(RunStoppedError):
            Loop(tmp_path).go("xxx")
    assert [path.name for path in (tmp_path / "blackbox").iterdir()] == ["0000000007-0000000002"]


def test_a_run_stops_even_when_no_black_box_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "blackbox").write_text("a file where the folder should be")
    with pytest.raises(RunStoppedError, match="no black box could be written below"):
        Loop(tmp_path).go("xxx")


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ReverieError, match=r"is not a black box: it holds no manifest\.json"):
        read_black_box(tmp_path)
