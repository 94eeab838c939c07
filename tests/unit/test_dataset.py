"""A dataset on disk is whole or not there, says what is wrong with it, and gives back the rows it was given."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_episodes import SPACES, made_rows, write_dataset

from reverie.datasets.dataset import Dataset
from reverie.datasets.episode_rows import row_findings
from reverie.datasets.index import INDEX_FILE
from reverie.datasets.spaces_json import spaces_content, spaces_of
from reverie.datasets.writer import DatasetWriter
from reverie.runtime.signed_json import signed
from reverie.types import ReverieError, Space, Spaces


def write(path: Path, **more: int) -> Dataset:
    return Dataset(write_dataset(path, **more))


def test_rows_come_back_bit_for_bit(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data", file_bytes=1500)
    assert len(dataset.index.files) > 1
    assert (dataset.index.rows, len(dataset.index.episodes), dataset.index.task) == (24, 4, "made_up")
    assert [episode.end for episode in dataset.index.episodes] == ["terminal", "limit", "terminal", "limit"]
    for index, (rows, steps) in enumerate(zip(dataset.episodes(), (6, 1, 9, 4), strict=True)):
        expected = made_rows(SPACES, steps, is_terminal=index % 2 == 0, seed=index)
        assert rows.keys() == expected.keys()
        for name, value in expected.items():
            assert rows[name].dtype == value.dtype
            np.testing.assert_array_equal(rows[name], value)
        assert dataset.index.episodes[index].score == pytest.approx(expected["reward"].sum())
    assert dataset.problems(reads_all=True) == []


def test_how_rows_are_cut_into_files_is_part_of_the_checksum_and_rows_are_too(tmp_path: Path) -> None:
    one, same = write(tmp_path / "1"), write(tmp_path / "2")
    assert one.index.digest == same.index.digest
    assert write(tmp_path / "3", file_bytes=1500).index.digest != one.index.digest
    other = Dataset(write_dataset(tmp_path / "4", lengths=(6, 1, 9, 5)))
    assert other.index.digest != one.index.digest


@pytest.mark.parametrize(
    "space",
    [Space(shape=(3,), dtype="int64", classes=(2, 3, 4)), Space(shape=(), dtype="int64", classes=7)],
)
def test_spaces_survive_json(space: Space) -> None:
    spaces = Spaces(obs=SPACES.obs, action=space)
    assert spaces_of(json.loads(json.dumps(spaces_content(spaces)))) == spaces


def test_what_a_writer_leaves_behind(tmp_path: Path) -> None:
    def broken() -> None:
        with DatasetWriter(tmp_path / "data", spaces=SPACES, task=None, origin="", file_bytes=1) as writer:
            writer.add(made_rows(SPACES, 3, is_terminal=True, seed=0))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / ".tmp-data").mkdir()
    (tmp_path / ".tmp-data" / "rows-00000009.safetensors").write_text("left by a killed process")
    write(tmp_path / "data")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["data", INDEX_FILE, "rows-00000000.safetensors"]
    with pytest.raises(ReverieError, match="exists already"):
        write(tmp_path / "data")


def test_a_writer_refuses_rows_that_are_no_episode(tmp_path: Path) -> None:
    rows = made_rows(SPACES, 3, is_terminal=True, seed=0)
    rows["obs/speed/wheel"][2, 1] = np.nan

    def add() -> None:
        with DatasetWriter(tmp_path / "data", spaces=SPACES, task=None, origin="") as writer:
            writer.add(rows)

    with pytest.raises(ReverieError, match=r"episode 0, speed/wheel, step 2: not a finite number"):
        add()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("obs/image", np.zeros((4, 4, 5, 3), np.float32), "image: float32 of shape"),
        ("action", np.array([0, 1, 3, 0]), "action, step 2: 3 is none of the classes 3"),
        ("reward", np.array([1, 0, 0, 0], np.float32), "reward, step 0: the first row has a reward"),
        ("is_first", np.array([True, False, True, False]), "is_first, step 2: must be False"),
        ("is_last", np.zeros(4, bool), "is_last, step 3: must be True"),
        ("is_terminal", np.array([False, True, False, True]), "is_terminal, step 1: set before the last row"),
        ("action", np.array([0, 1, 2, 1]), "action, step 3: the last row has an action"),
        ("reward", np.zeros(3, np.float32), "arrays of different lengths (3, 4)"),
        ("obs/other", np.zeros(4, np.float32), "other: not in the other episodes"),
    ],
)
def test_findings_name_the_place(name: str, value: np.ndarray, words: str) -> None:
    rows = made_rows(SPACES, 3, is_terminal=True, seed=0)
    assert row_findings(rows, SPACES, where="here") == []
    found = row_findings({**rows, name: value}, SPACES, where="here")
    assert any(f"here, {words}" in str(finding) or f"here: {words}" in str(finding) for finding in found), found


def test_damage_is_named(tmp_path: Path) -> None:
    dataset = write(tmp_path / "data")
    file = tmp_path / "data" / "rows-00000000.safetensors"
    content = bytearray(file.read_bytes())
    content[-3] ^= 1
    file.write_bytes(content)
    assert dataset.problems(reads_all=False) == []
    assert dataset.problems(reads_all=True) == ["rows-00000000.safetensors: checksum differs"]
    with pytest.raises(ReverieError, match=r"rows-00000000\.safetensors is damaged \(checksum differs\)"):
        list(dataset.episodes())
    file.write_bytes(content[:-1])
    assert "bytes instead of" in dataset.problems(reads_all=False)[0]
    file.unlink()
    assert dataset.problems(reads_all=False) == ["rows-00000000.safetensors: missing"]


def test_a_changed_or_foreign_index_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "data")
    index = tmp_path / "data" / INDEX_FILE
    original = index.read_bytes()
    index.write_bytes(original.replace(b"made_up", b"made_us"))
    with pytest.raises(ReverieError, match=r"index\.json is damaged \(checksum differs\)"):
        Dataset(tmp_path / "data")
    content = {key: value for key, value in json.loads(original).items() if key != "digest"}
    index.write_bytes(signed({**content, "version": 2}))
    with pytest.raises(ReverieError, match="format version 2"):
        Dataset(tmp_path / "data")
    content["files"][0]["name"] = "../rows-00000000.safetensors"
    index.write_bytes(signed(content))
    with pytest.raises(ReverieError, match="is damaged"):
        Dataset(tmp_path / "data")
    with pytest.raises(ReverieError, match="is no dataset of Reverie"):
        Dataset(tmp_path)
