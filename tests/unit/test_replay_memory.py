"""What a row takes, how many of them a run keeps, and what is said when they do not fit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from reverie.build import assemble, phases_of
from reverie.commands.composition import composed
from reverie.orchestration.parts import Parts
from reverie.orchestration.phases import PhaseSpec
from reverie.orchestration.replay_memory import check_memory, row_bytes
from reverie.types import ReverieError

SMALL = ("experiment=dreamer_cartpole", "size=debug", "training.total_timesteps=5000", "environment.in_workers=false")
ROW = 4 * 4 + 4 + 3 + 8 + 2 * 8 + 2
"""CartPole at `size=debug`: four floats, reward, flags, an action, eight halves of deter and two classes of stoch."""


@pytest.fixture(scope="module")
def made() -> Iterator[tuple[tuple[PhaseSpec, ...], Parts]]:
    config = composed("gym_CartPole-v1", [*SMALL, "buffer.replay.capacity=8000", "buffer.evaluation.capacity=1000"])
    parts = assemble(config, device=torch.device("cpu"), allow=None)
    yield phases_of(config), parts
    parts.close()


def test_a_row_is_measured_without_a_trace(made: tuple[tuple[PhaseSpec, ...], Parts]) -> None:
    made[1].workflow.policy(None)
    before = made[1].rng.get_state()
    assert row_bytes(made[1]) == ROW
    after = made[1].rng.get_state()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_only_rows_that_the_run_collects_count(made: tuple[tuple[PhaseSpec, ...], Parts]) -> None:
    """5,000 steps and the 1,000 rows of the buffer for evaluations, of 8,000 and 1,000 that would have room."""
    check_memory(*made, free_bytes=6000 * ROW)
    with pytest.raises(ReverieError, match=r"6,000 rows of 49 bytes.*buffer\.replay\.capacity to at most 4,999\."):
        check_memory(*made, free_bytes=6000 * ROW - 1)
