"""npz episodes of the older Dreamer codes: actions move up a row, and every defect is named with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_episodes import old_dreamer

from reverie.datasets.dataset import Dataset
from reverie.interop.dataset_import import Imported, import_dataset, opened_source
from reverie.interop.episode_forms import ActionReading
from reverie.types import ReverieError, Space

Arrays = dict[str, Any]


def save(folder: Path, **episodes: Arrays) -> Path:
    folder.mkdir(exist_ok=True)
    for name, arrays in episodes.items():
        np.savez_compressed(folder / f"{name}.npz", **arrays)
    return folder


def imported(source: Path, **more: Any) -> Imported:
    return import_dataset(opened_source(str(source)), source.parent / "dest", reading=ActionReading(**more))


def only_episode(source: Path, **more: Any) -> dict[str, np.ndarray]:
    result = imported(source, **more)
    assert result.findings == []
    (rows,) = Dataset(source.parent / "dest").episodes()
    return dict(rows)


def words(result: Imported) -> list[str]:
    return [str(finding) for finding in result.findings]


def test_actions_move_up_to_the_observation_they_were_chosen_at(tmp_path: Path) -> None:
    arrays = old_dreamer()
    rows = only_episode(save(tmp_path / "eps", one=arrays))
    assert rows["action"].tolist() == [*arrays["action"].argmax(-1)[1:].tolist(), 0]
    np.testing.assert_array_equal(rows["obs/image"], arrays["image"])
    np.testing.assert_array_equal(rows["reward"], arrays["reward"])
    assert rows["is_terminal"].tolist() == [False] * 5 + [True]
    assert Dataset(tmp_path / "dest").index.spaces.action == Space(shape=(), dtype="int64", classes=4)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_flags_follow_from_the_discount_and_the_ends(is_terminal: bool, tmp_path: Path) -> None:
    arrays = old_dreamer(is_terminal=is_terminal)
    lean = {key: value for key, value in arrays.items() if not key.startswith("is_")}
    rows = only_episode(save(tmp_path / "eps", one=lean))
    for name in ("is_first", "is_last", "is_terminal"):
        np.testing.assert_array_equal(rows[name], arrays[name])


def test_other_names_for_flags(tmp_path: Path) -> None:
    arrays = old_dreamer()
    renamed = {key: value for key, value in arrays.items() if key not in ("is_first", "is_last", "discount")}
    renamed |= {"reset": arrays["is_first"], "terminal": renamed.pop("is_terminal").astype(np.float32)}
    rows = only_episode(save(tmp_path / "eps", one=renamed))
    np.testing.assert_array_equal(rows["is_terminal"], arrays["is_terminal"])


def test_continuous_actions_keep_their_bits_or_are_scaled(tmp_path: Path) -> None:
    arrays = old_dreamer()
    arrays["action"] = np.random.default_rng(0).uniform(-1, 1, (6, 2)).astype(np.float32)
    rows = only_episode(save(tmp_path / "eps", one=arrays))
    np.testing.assert_array_equal(rows["action"][:-1], arrays["action"][1:])
    wide = save(tmp_path / "wide", one={**arrays, "action": arrays["action"] * 3 + 1})
    with pytest.raises(ReverieError, match="exists already"):
        imported(wide)
    result = import_dataset(opened_source(str(wide)), tmp_path / "2", reading=ActionReading())
    assert result.index is None
    assert "lies outside [-1, 1]; --action-range" in words(result)[0]
    import_dataset(opened_source(str(wide)), tmp_path / "3", reading=ActionReading(low=-2, high=4))
    (scaled,) = Dataset(tmp_path / "3").episodes()
    np.testing.assert_allclose(scaled["action"], rows["action"], atol=1e-6)


def test_one_hot_actions_can_stay_vectors(tmp_path: Path) -> None:
    rows = only_episode(save(tmp_path / "eps", one=old_dreamer()), kind="vector")
    assert rows["action"].shape == (6, 4)


def test_whole_numbers_are_choices_and_other_observations_vectors(tmp_path: Path) -> None:
    arrays = old_dreamer()
    arrays["action"] = np.array([0, 2, 1, 2, 0, 2], np.int32)
    arrays["position"] = np.arange(6, dtype=np.float64)
    arrays["grid"] = np.arange(24, dtype=np.int16).reshape(6, 2, 2)
    arrays["log_speed"] = np.zeros(6)
    folder = save(tmp_path / "eps", one=arrays)
    result = imported(folder)
    spaces = Dataset(tmp_path / "dest").index.spaces
    assert spaces.action.classes == 3
    assert {key: (space.shape, space.dtype) for key, space in spaces.obs.items()} == {
        "image": ((8, 8, 3), "uint8"),
        "position": ((1,), "float32"),
        "grid": ((4,), "float32"),
    }
    assert result.notes == {"left out log_speed": 1}


def test_a_file_with_several_episodes_is_split_at_first_rows(tmp_path: Path) -> None:
    one, two = old_dreamer(3, seed=1), old_dreamer(4, seed=2, is_terminal=False)
    both = {key: np.concatenate([one[key], two[key]]) for key in one}
    result = imported(save(tmp_path / "eps", both=both))
    assert words(result) == []
    assert [episode.rows for episode in Dataset(tmp_path / "dest").index.episodes] == [4, 5]


def damaged(key: str, value: Any) -> Arrays:
    return {**old_dreamer(), key: value}


def lacking(*keys: str) -> Arrays:
    return {key: value for key, value in old_dreamer().items() if key not in keys}


def with_nan(key: str, step: int) -> Arrays:
    arrays = old_dreamer() | {"vector": np.zeros((6, 2), np.float32)}
    arrays[key] = arrays[key].copy()
    arrays[key][step] = np.nan
    return arrays


DEFECTS: dict[str, tuple[Arrays, str]] = {
    "no reward": (lacking("reward"), "bad.npz, reward: missing"),
    "no action": (lacking("action"), "bad.npz, action: missing"),
    "no observation": (lacking("image"), "bad.npz: no observation"),
    "no end": (lacking("is_terminal", "discount"), "bad.npz, is_terminal: missing, and so is discount"),
    "ragged": (damaged("reward", np.zeros(5, np.float32)), "bad.npz, reward, step 5: 5 rows instead of 6"),
    "text": (damaged("reward", np.array(["a"] * 6)), "bad.npz, reward: <U1 is not a kind of number"),
    "objects": (damaged("image", np.array([{}] * 6)), "bad.npz: holds Python objects, which are not read"),
    "float picture": (
        damaged("image", np.zeros((6, 8, 8, 3), np.float32)),
        "bad.npz, image: float32 of shape (8, 8, 3) is neither a vector nor a picture",
    ),
    "another size": (
        damaged("image", np.zeros((6, 9, 9, 3), np.uint8)),
        "bad.npz, image: uint8 of shape (9, 9, 3) instead of uint8 of shape (8, 8, 3)",
    ),
    "another key": (damaged("depth", np.zeros(6, np.float32)), "bad.npz, depth: not in the other episodes"),
    "NaN reward": (with_nan("reward", 3), "bad.npz, reward, step 3: not a finite number"),
    "NaN vector": (with_nan("vector", 4), "bad.npz, vector, step 4: not a finite number"),
    "NaN action": (with_nan("action", 2), "bad.npz, action, step 2: not a finite number"),
    "too large": (damaged("speed", np.full(6, 1e300)), "bad.npz, speed, step 0: not a finite number"),
    "starts in the middle": (damaged("is_first", np.zeros(6, bool)), "bad.npz, is_first, step 0: not set"),
    "ends in the middle": (damaged("is_last", np.arange(6) == 2), "bad.npz, is_last, step 2: set, but"),
    "terminal in the middle": (damaged("is_terminal", np.arange(6) == 2), "bad.npz, is_terminal, step 2: set before"),
    "wide flag": (damaged("is_last", np.zeros((6, 2))), "bad.npz, is_last: float64 of shape (2,) instead of a number"),
    "one row": ({key: value[:1] for key, value in old_dreamer().items()}, "bad.npz: fewer than two rows"),
    "newer code": (damaged("stepid", np.zeros((6, 20), np.uint8)), "bad.npz, stepid: a replay chunk of the newer"),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_named_and_the_good_episodes_are_kept(defect: str, tmp_path: Path) -> None:
    bad, expected = DEFECTS[defect]
    folder = save(tmp_path / "eps", a=old_dreamer(seed=1), bad=bad, c=old_dreamer(seed=2))
    result = imported(folder)
    assert any(text.startswith(expected) for text in words(result)), words(result)
    assert {finding.where for finding in result.findings} == {"bad.npz"}
    assert len(Dataset(tmp_path / "dest").index.episodes) == 2


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 torn", b"no archive at all"])
def test_a_bad_file_is_named(content: bytes, tmp_path: Path) -> None:
    folder = save(tmp_path / "eps", good=old_dreamer())
    (folder / "bad.npz").write_bytes(content)
    result = imported(folder)
    assert [text.partition(" (")[0] for text in words(result)] == ["bad.npz: not a readable npz file"]
    assert result.index is not None


def test_a_torn_file_is_named(tmp_path: Path) -> None:
    folder = save(tmp_path / "eps", good=old_dreamer(), torn=old_dreamer())
    torn = folder / "torn.npz"
    content = bytearray(torn.read_bytes())
    content[200:220] = bytes(20)
    torn.write_bytes(content)
    assert words(imported(folder))[0].startswith("torn.npz: not a readable npz file")


def test_without_a_good_episode_nothing_is_written(tmp_path: Path) -> None:
    folder = save(tmp_path / "eps", one=lacking("reward"), two=with_nan("reward", 1))
    result = imported(folder)
    assert result.index is None
    assert len(result.findings) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["eps"]


def test_most_episodes_decide_what_the_others_must_look_like(tmp_path: Path) -> None:
    odd = damaged("image", np.zeros((6, 4, 4, 3), np.uint8))
    folder = save(tmp_path / "eps", a_odd=odd, b=old_dreamer(seed=1), c=old_dreamer(seed=2))
    result = imported(folder)
    assert [finding.where for finding in result.findings] == ["a_odd.npz"]


def test_sources_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("x")
    for name, sentence in (
        ("nowhere", "there is no"),
        ("empty", "neither npz nor HDF5 files"),
        ("notes.txt", "is neither .npz nor HDF5"),
    ):
        with pytest.raises(ReverieError, match=sentence):
            opened_source(str(tmp_path / name))
    folder = save(tmp_path / "eps", one=old_dreamer())
    imported(folder)
    with pytest.raises(ReverieError, match="is a dataset of Reverie already"):
        opened_source(str(tmp_path / "dest"))
