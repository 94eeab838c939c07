"""The buffer of a dataset gives the windows of its rows, keeps what is written back, and knows its dataset."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from made_episodes import write_dataset
from omegaconf import DictConfig

from reverie import offline_build
from reverie.buffers.offline import OfflineBuffer
from reverie.datasets.dataset import Dataset
from reverie.runtime.machine_memory import Memory
from reverie.runtime.rng import RandomStreams
from reverie.types import ReverieError


def made(path: Path, *, seed: int = 0, digest: str | None = None) -> OfflineBuffer:
    return OfflineBuffer(path=str(path), rng=torch.Generator().manual_seed(seed), digest=digest)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", file_bytes=1500)


def test_windows_are_consecutive_rows_across_episode_borders(data: Path) -> None:
    buffer = made(data)
    episodes = list(Dataset(data).episodes())
    whole = {name: np.concatenate([rows[name] for rows in episodes]) for name in episodes[0]}
    batch = buffer.sample(64, 8, sampler="uniform")
    for start, row in zip(batch.index.row[:, 0].tolist(), range(64), strict=True):
        span = slice(start, start + 8)
        assert batch.index.row[row].tolist() == list(range(start, start + 8))
        np.testing.assert_array_equal(batch.obs["image"][row], whole["obs/image"][span])
        for name in ("action", "reward", "is_first", "is_last", "is_terminal"):
            np.testing.assert_array_equal(getattr(batch, name)[row], whole[name][span])
    assert batch.is_first[:, 1:].any(), "no window crossed a border"
    assert torch.equal(batch.is_first[:, 1:], batch.is_last[:, :-1])
    newest = buffer.aged(torch.zeros(1, dtype=torch.int64), torch.tensor([[2, 1, 0]]))
    np.testing.assert_array_equal(newest.reward[0], whole["reward"][-3:])


def test_every_start_is_equally_likely(data: Path) -> None:
    buffer = made(data)
    starts = buffer.sample(20_000, 5, sampler="uniform").index.row[:, 0]
    counts = np.bincount(starts.numpy(), minlength=20)
    assert counts.shape == (20,)
    assert ((counts - 1000) ** 2 / 1000).sum() < 43.8  # the 99.9th percentile of chi-square with 19 degrees of freedom


def test_it_says_what_it_can_give(data: Path) -> None:
    buffer = made(data)
    assert len(buffer) == buffer.stream_length == 24
    assert buffer.can_sample(20, 5)
    assert not buffer.can_sample(21, 5)
    assert not buffer.could_sample(1, 25)
    assert list(buffer.closed_chunks()) == []


def test_latents_start_as_zeros_and_are_written_back_and_saved(data: Path) -> None:
    buffer, again = made(data), made(data)
    for one in (buffer, again):
        one.keep({"deter": torch.ones(1, 3, dtype=torch.bfloat16), "stoch": torch.ones(1, 2, dtype=torch.uint8)})
    batch = buffer.sample(1, 6, sampler="uniform")
    assert batch.stored["deter"].shape == (1, 6, 3)
    assert not any(value.any() for value in batch.stored.values())
    buffer.write_back(batch.index, {"deter": torch.full((1, 4, 3), 0.5), "stoch": torch.full((1, 4, 2), 7)})
    start = int(batch.index.row[0, 0])
    age = 23 - torch.arange(start, start + 6).unsqueeze(0)
    seen = buffer.aged(torch.zeros(1, dtype=torch.int64), age)
    assert seen.stored["deter"][0, :, 0].tolist() == [0, 0, 0.5, 0.5, 0.5, 0.5]
    assert seen.stored["stoch"].dtype == torch.uint8
    addresses = again.sample(1, 2, sampler="uniform")
    again.set_state(buffer.get_state())
    assert torch.equal(again.aged(torch.zeros(1, dtype=torch.int64), age).stored["deter"], seen.stored["deter"])
    assert addresses.stored["deter"].shape == (1, 2, 3)


def test_windows_inside_one_episode(data: Path) -> None:
    buffer = made(data)  # episodes of 7, 2, 10 and 5 rows
    assert buffer.can_sample(10, 5, crosses_episodes=False)
    assert not buffer.can_sample(11, 5, crosses_episodes=False)
    assert not buffer.can_sample(1, 11, crosses_episodes=False)
    batch = buffer.sample(200, 5, sampler="uniform", crosses_episodes=False)
    assert not batch.is_first[:, 1:].any()
    assert sorted(set(batch.index.row[:, 0].tolist())) == [0, 1, 2, 9, 10, 11, 12, 13, 14, 19]


def test_priorities_are_drawn_by_and_saved(data: Path) -> None:
    buffer, again = made(data), made(data)
    batch = buffer.sample(500, 5, sampler="prioritized")
    assert set(batch.index.row[:, 0].tolist()) == set(range(20))
    priority = torch.where(batch.index.row[:, 0] == 3, 1.0, 1e-9)
    buffer.prioritize(batch.index, priority)
    drawn = buffer.sample(100, 5, sampler=(("prioritized", 0.9), ("uniform", 0.1))).index.row[:, 0]
    assert (drawn[:90] == 3).float().mean() > 0.95
    again.set_state(buffer.get_state())
    again_rng, rng = torch.Generator().manual_seed(5), torch.Generator().manual_seed(5)
    again._rng.set_state(again_rng.get_state())
    buffer._rng.set_state(rng.get_state())
    one, other = (made_one.sample(50, 5, sampler="prioritized").index.row for made_one in (buffer, again))
    assert torch.equal(one, other)


def test_another_dataset_is_refused(data: Path, tmp_path: Path) -> None:
    digest = Dataset(data).index.digest
    assert made(data, digest=digest).digest == digest
    other = write_dataset(tmp_path / "other", lengths=(6, 1))
    with pytest.raises(ReverieError, match="has changed since this run was started"):
        made(other, digest=digest)
    with pytest.raises(ReverieError, match="has changed since the checkpoint was made"):
        made(other).set_state(made(data).get_state())


def test_what_does_not_fit_is_refused_before_it_is_loaded(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = {"_target_": "reverie.buffers.offline.OfflineBuffer", "path": str(data), "digest": None}
    config = DictConfig({"buffer": {"replay": node}})
    rng = RandomStreams(0, device=torch.device("cpu"))
    assert len(offline_build.offline_buffers(config, rng=rng, allow=())["replay"]) == 24
    assert config.buffer.replay.digest == Dataset(data).index.digest
    monkeypatch.setattr(offline_build, "machine_memory", lambda: Memory(total_bytes=1000, available_bytes=1000))
    with pytest.raises(ReverieError, match=r"needs 2\.\d KB of memory on cpu, of which 1\.0 KB are free"):
        offline_build.offline_buffers(config, rng=rng, allow=())
