"""HDF5 files, flat and with a group per episode, and Minari datasets: rewards arrive a row after their action."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import h5py
import minari
import numpy as np
import pytest
from minari.data_collector import EpisodeBuffer

from reverie.datasets.dataset import Dataset
from reverie.interop.dataset_import import Imported, import_dataset, opened_source
from reverie.interop.episode_forms import ActionReading
from reverie.types import ReverieError, Space

Arrays = dict[str, Any]


def flat(rows: int = 12) -> Arrays:
    """Three episodes: rows 0 to 3 end by themselves, rows 4 to 8 by a limit, the rest is cut off."""
    rng = np.random.default_rng(0)
    place = np.arange(rows)
    obs = rng.normal(size=(rows, 3)).astype(np.float32)
    return {
        "observations": obs,
        "next_observations": obs + 0.5,
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "terminals": place == 3,
        "timeouts": place == 8,
    }


def save(path: Path, content: Arrays) -> Path:
    with h5py.File(path, "w") as root:
        for name, value in content.items():
            root[name] = value
    return path


def imported(source: Path | str, dest: Path) -> Imported:
    return import_dataset(opened_source(str(source)), dest, reading=ActionReading())


def words(result: Imported) -> list[str]:
    return [str(finding) for finding in result.findings]


def test_a_flat_file_is_cut_where_its_flags_say(tmp_path: Path) -> None:
    content = flat()
    result = imported(save(tmp_path / "flat.hdf5", content | {"infos/qpos": np.zeros(12)}), tmp_path / "dest")
    assert words(result) == []
    assert result.notes == {"left out infos": 1}
    dataset = Dataset(tmp_path / "dest")
    assert [(one.rows, one.end) for one in dataset.index.episodes] == [(5, "terminal"), (6, "limit"), (4, "limit")]
    first = next(iter(dataset.episodes()))
    np.testing.assert_array_equal(first["obs/vector"][:4], content["observations"][:4])
    np.testing.assert_array_equal(first["obs/vector"][4], content["next_observations"][3])
    np.testing.assert_array_equal(first["action"][:4], content["actions"][:4])
    np.testing.assert_array_equal(first["reward"], np.append(0, content["rewards"][:4]).astype(np.float32))
    assert dataset.index.spaces.action == Space(shape=(2,), dtype="float32")


def test_without_following_observations_the_last_is_repeated_or_the_step_left_out(tmp_path: Path) -> None:
    content = flat()
    del content["next_observations"], content["timeouts"]
    result = imported(save(tmp_path / "flat.h5", content), tmp_path / "dest")
    dataset = Dataset(tmp_path / "dest")
    assert [(one.rows, one.end) for one in dataset.index.episodes] == [(5, "terminal"), (8, "limit")]
    first, second = dataset.episodes()
    np.testing.assert_array_equal(first["obs/vector"][4], first["obs/vector"][3])
    np.testing.assert_array_equal(second["reward"][1:], content["rewards"][4:11])
    assert sum(result.notes.values()) == 3


@pytest.mark.parametrize("holder", ["", "data/"])
def test_a_group_per_episode(holder: str, tmp_path: Path) -> None:
    content: Arrays = {}
    for name, start in (("demo_10", 4), ("demo_9", 0)):
        span = slice(start, start + 4)
        part = {key: value[span] for key, value in flat().items() if key not in ("next_observations", "timeouts")}
        following = flat()["next_observations"][start + 3 : start + 4]
        obs = part.pop("observations")
        pixels = np.zeros((5, 6, 7), np.uint8)
        grouped = {"obs/state": np.concatenate([obs, following]), "obs/camera/front": pixels, **part}
        content |= {f"{holder}{name}/{key}": value for key, value in grouped.items()}
    result = imported(save(tmp_path / "episodes.hdf5", content), tmp_path / "dest")
    assert words(result) == []
    dataset = Dataset(tmp_path / "dest")
    assert dataset.index.spaces.obs["camera/front"] == Space(shape=(6, 7, 1), dtype="uint8")
    nine, ten = dataset.episodes()
    np.testing.assert_array_equal(nine["obs/state"][:4], flat()["observations"][:4])
    assert (nine["is_terminal"][-1], ten["is_terminal"][-1]) == (True, False)


def nan_at(key: str, row: int) -> Arrays:
    content = flat()
    content[key][row] = np.nan
    return content


DEFECTS: dict[str, tuple[Arrays, str]] = {
    "no rewards": ({k: v for k, v in flat().items() if k != "rewards"}, "bad.h5, rewards: missing"),
    "no terminals": ({k: v for k, v in flat().items() if k != "terminals"}, "bad.h5, terminals: missing"),
    "nothing": ({"x": np.zeros(3)}, "bad.h5, observations: missing, and there is no group"),
    "ragged": (flat() | {"rewards": np.zeros(11)}, "bad.h5, rewards, step 11: 11 rows instead of 12"),
    "text": (flat() | {"actions": np.array([b"a"] * 12)}, "bad.h5, rows 0 to 3, action: |S1 is not a kind of number"),
    "NaN": (nan_at("observations", 5), "bad.h5, rows 4 to 8, vector, step 1: not a finite number"),
    "NaN reward": (nan_at("rewards", 2), "bad.h5, rows 0 to 3, reward, step 2: not a finite number"),
    "group without actions": (
        {f"e/{k}": v for k, v in flat().items() if k != "actions"},
        "bad.h5, e, actions: missing",
    ),
    "terminal in the middle": ({f"e/{k}": v for k, v in flat().items()}, "bad.h5, e, terminals, step 3: set before"),
    "group too short": (
        {f"e/{k}": v[:4] if k == "actions" else v[4:9] for k, v in flat().items() if k != "next_observations"},
        "bad.h5, e, action, step 3: 3 entries instead of 4",
    ),
}


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_named_and_the_good_episodes_are_kept(defect: str, tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    bad, expected = DEFECTS[defect]
    save(tmp_path / "files" / "bad.h5", bad)
    save(tmp_path / "files" / "good.h5", flat())
    result = imported(tmp_path / "files", tmp_path / "dest")
    assert any(text.startswith(expected) for text in words(result)), words(result)
    assert result.index is not None
    assert len(result.index.episodes) in (3, 5)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "bad.h5").write_bytes(b"\x89HDF\r\n\x1a\n torn")
    result = imported(tmp_path / "files", tmp_path / "dest")
    assert result.index is None
    assert words(result)[0].startswith("bad.h5: not a readable HDF5 file")


def minari_buffers(*, bad: bool = False) -> list[EpisodeBuffer]:
    buffers = []
    for index, steps in enumerate((3, 5)):
        rng = np.random.default_rng(index)
        obs = {
            "eye": rng.integers(0, 256, (steps + 1, 8, 8, 3), dtype=np.uint8),
            "body": rng.normal(size=(steps + 1, 2)).astype(np.float32),
        }
        rewards = rng.normal(size=steps)
        if bad and index == 0:
            rewards[1] = np.nan
        buffers.append(
            EpisodeBuffer(
                observations=obs,
                actions=rng.uniform(-2, 2, (steps, 1)).astype(np.float32),
                rewards=rewards,
                terminations=np.arange(steps) == (steps - 1 if index == 0 else -1),
                truncations=np.arange(steps) == (steps - 1 if index == 1 else -1),
            )
        )
    return buffers


@pytest.fixture
def minari_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def make_minari(buffers: list[EpisodeBuffer]) -> None:
    spaces = gymnasium.spaces
    minari.create_dataset_from_buffers(
        "made/test-v0",
        buffer=buffers,
        observation_space=spaces.Dict(
            {"eye": spaces.Box(0, 255, (8, 8, 3), np.uint8), "body": spaces.Box(-np.inf, np.inf, (2,), np.float32)}
        ),
        action_space=spaces.Box(-2, 2, (1,), np.float32),
        algorithm_name="test",
        author="test",
        author_email="test@example.org",
        code_permalink="https://example.org",
        jpeg_encoding=False,
    )


@pytest.mark.filterwarnings("ignore")
def test_a_local_minari_dataset(minari_home: Path, tmp_path: Path) -> None:
    buffers = minari_buffers()
    make_minari(buffers)
    result = imported("minari:made/test-v0", tmp_path / "dest")
    assert words(result) == []
    dataset = Dataset(tmp_path / "dest")
    assert [(one.rows, one.end) for one in dataset.index.episodes] == [(4, "terminal"), (6, "limit")]
    assert dataset.index.spaces.action == Space(shape=(1,), dtype="float32")
    rows = next(iter(dataset.episodes()))
    np.testing.assert_allclose(rows["action"][:3], np.asarray(buffers[0].actions) / 2, rtol=1e-6)
    np.testing.assert_array_equal(rows["obs/eye"], buffers[0].observations["eye"])  # pyright: ignore
    again = imported(minari_home / "made" / "test-v0", tmp_path / "by_folder")
    assert again.index is not None
    assert again.index.digest == dataset.index.digest


@pytest.mark.filterwarnings("ignore")
def test_a_minari_dataset_with_a_bad_episode(minari_home: Path, tmp_path: Path) -> None:
    make_minari(minari_buffers(bad=True))
    result = imported("minari:made/test-v0", tmp_path / "dest")
    assert words(result) == ["episode 0, reward, step 2: not a finite number"]
    with pytest.raises(ReverieError, match="there is no Minari dataset"):
        imported("minari:made/other-v0", tmp_path / "other")


def test_a_file_that_leads_to_other_files_is_refused(tmp_path: Path) -> None:
    """Else whoever imports a stranger's file would put files of their own into a dataset."""
    secret = tmp_path / "secret.txt"
    secret.write_bytes(b"secret" * 100)
    content = flat()
    for name in ("link", "elsewhere"):
        path = save(tmp_path / f"{name}.hdf5", {key: value for key, value in content.items() if key != "observations"})
        with h5py.File(path, "a") as file:
            if name == "link":
                file["observations"] = h5py.ExternalLink(str(tmp_path / "elsewhere.hdf5"), "/observations")
            else:
                rows = len(content["rewards"])
                place = [(str(secret), 0, rows * 2)]
                file.create_dataset("observations", shape=(rows, 2), dtype="u1", external=place)
        result = imported(path, tmp_path / f"made-{name}")
        assert result.index is None
        assert "not followed" in words(result)[0] if name == "link" else "another file" in words(result)[0]


@pytest.mark.parametrize("strange", [np.array(["a"] * 12, dtype="S1"), np.zeros((12, 0), np.float32)])
def test_strange_arrays_are_sentences(strange: np.ndarray, tmp_path: Path) -> None:
    key = "timeouts" if strange.dtype.kind == "S" else "observations"
    path = save(tmp_path / "odd.hdf5", flat() | {key: strange, f"next_{key}": strange})
    if key == "observations":
        with pytest.raises(ReverieError, match="in which there are no numbers"):
            imported(path, tmp_path / "made")
    else:
        result = imported(path, tmp_path / "made")
        assert result.index is None
        assert "is not a kind of number" in words(result)[0]
