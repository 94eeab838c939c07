"""Replay that is filled with copies, and the memory of processes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from reverie.buffers.world_model_sequence import WorldModelSequenceBuffer
from reverie.orchestration.phases import BatchSpec
from reverie.probe_measures import filled
from reverie.runtime.process_memory import children_bytes, peak_bytes, resident_bytes
from reverie.types import Row


def last_row() -> Row:
    """An episode ends in both environments."""
    no, yes = torch.zeros(2, dtype=torch.bool), torch.ones(2, dtype=torch.bool)
    return Row(
        obs={"x": torch.ones(2, 3)},
        reward=torch.ones(2),
        is_first=yes,
        is_last=yes,
        is_terminal=no,
        action=torch.zeros(2),
        stored={"z": torch.ones(2, 4)},
    )


@pytest.mark.parametrize("crosses_episodes", [True, False])
def test_copies_give_exactly_one_batch(crosses_episodes: bool) -> None:
    """Eight windows of 5 + 1 rows in two streams need four starts, which nine rows have."""
    buffer = WorldModelSequenceBuffer(capacity=100, num_streams=2, rng=torch.Generator())
    batch = BatchSpec(8, 5, "uniform", crosses_episodes)
    filled(buffer, last_row(), batch, context_rows=1)
    assert len(buffer) == 2 * 9
    drawn = buffer.sample(8, 6, sampler="uniform", crosses_episodes=crosses_episodes)
    assert drawn.obs["x"].shape == (8, 6, 3)
    assert not drawn.is_last.any(), "the copies are one unbroken episode"


def test_a_buffer_that_holds_enough_is_left_alone() -> None:
    buffer = WorldModelSequenceBuffer(capacity=100, num_streams=2, rng=torch.Generator())
    no = torch.zeros(2, dtype=torch.bool)
    for _ in range(20):
        buffer.append(replace(last_row(), is_first=no, is_last=no))
    filled(buffer, last_row(), BatchSpec(8, 5), context_rows=1)
    assert len(buffer) == 40


def test_this_process_has_memory_and_its_children_have_their_own() -> None:
    assert 10**7 < resident_bytes() <= peak_bytes() * 1.01
    before = children_bytes()
    hoard = "import sys; block = bytearray(b'x') * 50_000_000; print('ready', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", hoard]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        assert children_bytes() - before > 40_000_000
        child.communicate("")
