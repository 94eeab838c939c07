"""Exported and imported again, a dataset has the same rows, bit for bit, whatever its spaces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_episodes import SPACES, write_dataset

from reverie import cli
from reverie.datasets.dataset import Dataset
from reverie.types import Space, Spaces

ACTIONS = {
    "choice": SPACES.action,
    "choices": Space(shape=(2,), dtype="int64", classes=(2, 5)),
    "vector": Space(shape=(3,), dtype="float32"),
}
OBS = {
    "several": SPACES.obs,
    "small picture with channels first": {"image": Space(shape=(2, 9, 9), dtype="uint8")},
    "discrete": {
        "cell": Space(shape=(), dtype="int64", classes=40),
        "bits": Space(shape=(2,), dtype="int64", classes=(2, 2)),
    },
    "number": {"vector": Space(shape=(1,), dtype="float32")},
}


@pytest.mark.parametrize("format_name", ["npz", "hdf5"])
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("obs", OBS)
def test_export_and_import_give_the_same_rows(format_name: str, action: str, obs: str, tmp_path: Path) -> None:
    spaces = Spaces(obs=OBS[obs], action=ACTIONS[action])
    original = Dataset(write_dataset(tmp_path / "original", spaces))
    exported = tmp_path / ("exported.hdf5" if format_name == "hdf5" else "exported")
    assert cli.main(["data", "export", str(original.path), str(exported), "--format", format_name]) == 0
    assert cli.main(["data", "import", str(exported), str(tmp_path / "again")]) == 0
    again = Dataset(tmp_path / "again")
    assert again.index.spaces == spaces
    assert [file.record for file in again.index.files] == [file.record for file in original.index.files]
    assert again.index.episodes == original.index.episodes


def test_npz_files_are_in_the_layout_of_the_older_codes(tmp_path: Path) -> None:
    original = Dataset(write_dataset(tmp_path / "original"))
    assert cli.main(["data", "export", str(original.path), str(tmp_path / "npz"), "--format", "npz"]) == 0
    rows = next(iter(original.episodes()))
    with np.load(tmp_path / "npz" / "00000000-7.npz", allow_pickle=False) as file:
        assert file["action"].shape == (7, 3)
        assert not file["action"][0].any()
        assert file["action"][1:].argmax(-1).tolist() == rows["action"][:-1].tolist()
        assert file["discount"].tolist() == [1, 1, 1, 1, 1, 1, 0]
        np.testing.assert_array_equal(file["speed/wheel"], rows["obs/speed/wheel"])


def test_what_an_export_declares_is_not_to_be_guessed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_dataset(tmp_path / "data")
    assert cli.main(["data", "export", str(data), str(tmp_path / "npz"), "--format", "npz"]) == 0
    command = ["data", "import", str(tmp_path / "npz"), str(tmp_path / "again"), "--action-range", "-2", "2"]
    assert cli.main(command) == 2
    assert "says itself what its actions are" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("format_name", ["npz", "hdf5"])
def test_an_export_is_whole_or_not_there(format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_dataset(tmp_path / "data", file_bytes=600)
    broken = data / "rows-00000001.safetensors"
    broken.write_bytes(broken.read_bytes()[:-1])
    assert cli.main(["data", "export", str(data), str(tmp_path / "out"), "--format", format_name]) == 2
    assert "rows-00000001.safetensors is damaged" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
    assert cli.main(["data", "export", str(data), str(data), "--format", format_name]) == 2
    assert "exists already" in capsys.readouterr().err
