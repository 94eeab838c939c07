"""Checkpoints are complete, checked on reading, and pruned; a damaged one gives way to the one before."""

from __future__ import annotations

import errno
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from reverie.orchestration.checkpoint import CheckpointConfig, CheckpointManager
from reverie.orchestration.state_tree import flattened
from reverie.runtime.array_file import array_pieces
from reverie.runtime.durable_files import digest
from reverie.types import ReverieError, State

FILES = ("state.json", "arrays.safetensors", "manifest.json")


class Rows:
    """A buffer of ``count`` chunks whose content depends on the index alone, from ``first`` on."""

    def __init__(self, count: int, first: int = 0) -> None:
        self.range = range(first, count)
        self.loaded: dict[int, dict[str, Tensor]] = {}

    def closed_chunks(self) -> range:
        return self.range

    def chunk(self, index: int) -> dict[str, Tensor]:
        return {"obs": torch.full((4, 3), index, dtype=torch.uint8), "reward": torch.arange(4.0) + index}

    def load_chunk(self, index: int, arrays: dict[str, Tensor]) -> None:
        self.loaded[index] = arrays


def state_at(step: int) -> State:
    return {"global_step": step, "weights": {"w": torch.full((3, 2), float(step))}, "rng": (2**127 + step, [1.5, None])}


def manager(folder: Path, said: list[str] | None = None, keep: int = 2) -> CheckpointManager:
    said = [] if said is None else said
    return CheckpointManager(folder, config=CheckpointConfig(every_steps=10, keep=keep), say=said.append)


def same(left: State, right: State) -> bool:
    """Equal in structure, types and bits."""
    (left_text, left_arrays), (right_text, right_arrays) = flattened(left), flattened(right)
    return left_text == right_text and b"".join(array_pieces(left_arrays)) == b"".join(array_pieces(right_arrays))


def test_saved_state_and_chunks_come_back(tmp_path: Path) -> None:
    assert manager(tmp_path).load() is None
    path = manager(tmp_path).save("000010", state_at(10), {"replay": Rows(3), "evaluation": Rows(0)})
    assert sorted(item.name for item in path.iterdir()) == sorted(FILES)
    assert (tmp_path / "checkpoints" / "latest").read_text().strip() == "000010"
    said: list[str] = []
    fresh = manager(tmp_path, said)
    loaded = fresh.load()
    assert loaded is not None
    assert loaded.name == "000010"
    assert same(loaded.state, state_at(10))
    rows = Rows(0)
    fresh.restore_buffers(loaded, {"replay": rows, "evaluation": Rows(0)})
    assert {index: same(dict(sorted(arrays.items())), rows.chunk(index)) for index, arrays in rows.loaded.items()} == {
        0: True, 1: True, 2: True,
    }  # fmt: skip
    assert said == []


def test_equal_states_give_equal_bytes(tmp_path: Path) -> None:
    paths = [manager(tmp_path / run).save("1", state_at(10), {"replay": Rows(2)}) for run in ("a", "b")]
    for file in FILES:
        assert (paths[0] / file).read_bytes() == (paths[1] / file).read_bytes()


def test_save_points_depend_on_the_step_count_alone(tmp_path: Path) -> None:
    steps = range(0, 100, 3)
    whole = manager(tmp_path)
    expected = [step for step in steps if whole.should_save(step)]
    assert expected == [12, 21, 30, 42, 51, 60, 72, 81, 90]
    for cut in range(len(steps)):
        before, after = manager(tmp_path), manager(tmp_path)
        points = [step for step in steps[:cut] if before.should_save(step)]
        after.set_state(before.get_state())
        assert points + [step for step in steps[cut:] if after.should_save(step)] == expected


def test_old_checkpoints_and_unneeded_chunks_go(tmp_path: Path) -> None:
    saver = manager(tmp_path)
    (tmp_path / "checkpoints" / ".tmp-000001").mkdir(parents=True)
    (tmp_path / "replay" / "replay").mkdir(parents=True)
    (tmp_path / "replay" / "replay" / ".tmp-00000000.safetensors").write_bytes(b"half")
    for number in range(1, 6):
        saver.save(f"{number:06d}", state_at(number), {"replay": Rows(number + 2, first=number)})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000004", "000005", "latest"]
    chunks = sorted(path.name for path in (tmp_path / "replay" / "replay").iterdir())
    assert chunks == ["00000004.safetensors", "00000005.safetensors", "00000006.safetensors"]


def test_known_chunks_are_written_once_and_leftovers_of_a_crash_again(tmp_path: Path) -> None:
    manager(tmp_path).save("1", state_at(1), {"replay": Rows(2)})
    folder = tmp_path / "replay" / "replay"
    (folder / "00000002.safetensors").write_bytes(b"left by a crash")
    inodes = [(folder / f"0000000{index}.safetensors").stat().st_ino for index in range(2)]
    resumed = manager(tmp_path)
    loaded = resumed.load()
    assert loaded is not None
    resumed.restore_buffers(loaded, {"replay": Rows(0)})
    resumed.save("2", state_at(2), {"replay": Rows(3)})
    assert [(folder / f"0000000{index}.safetensors").stat().st_ino for index in range(2)] == inodes
    assert same(dict(sorted(load_file(folder / "00000002.safetensors").items())), Rows(3).chunk(2))


def test_a_whole_checkpoint_of_the_same_name_is_left_alone_and_a_damaged_one_replaced(tmp_path: Path) -> None:
    saver = manager(tmp_path)
    path = saver.save("1", state_at(1), {})
    inode = path.stat().st_ino
    saver.save("1", state_at(1), {})
    assert path.stat().st_ino == inode
    (path / "arrays.safetensors").write_bytes(b"")
    saver.save("1", state_at(1), {})
    loaded = manager(tmp_path).load()
    assert loaded is not None
    assert same(loaded.state, state_at(1))


def two_checkpoints(folder: Path) -> None:
    saver = manager(folder)
    saver.save("000010", state_at(10), {"replay": Rows(1)})
    saver.save("000020", state_at(20), {"replay": Rows(2)})


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def lengthened(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def flip_bit(path: Path, where: float, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[min(int(where * len(data)), len(data) - 1)] ^= 1 << bit
    path.write_bytes(data)


DAMAGED = [*(f"checkpoints/000020/{file}" for file in FILES), "replay/replay/00000001.safetensors"]


@pytest.mark.parametrize("damage", [truncated, emptied, lengthened, Path.unlink], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("file", DAMAGED)
def test_a_damaged_checkpoint_is_reported_and_the_one_before_used(
    file: str, damage: Callable[[Path], None], tmp_path: Path
) -> None:
    two_checkpoints(tmp_path)
    damage(tmp_path / file)
    said: list[str] = []
    loaded = manager(tmp_path, said).load()
    assert loaded is not None
    assert same(loaded.state, state_at(10))
    assert len(said) == 1
    assert said[0].startswith("checkpoint 000020 is damaged (")
    assert Path(file).name in said[0]
    assert said[0].endswith("; using 000010 from step 10")


@pytest.fixture(scope="module")
def two_checkpoints_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    two_checkpoints(folder)
    return folder


@given(file=st.sampled_from(DAMAGED), where=st.floats(0, 1), bit=st.integers(0, 7))
@settings(deadline=None, max_examples=300)
def test_any_flipped_bit_is_found(file: str, where: float, bit: int, two_checkpoints_once: Path) -> None:
    path = two_checkpoints_once / file
    intact = path.read_bytes()
    flip_bit(path, where, bit)
    said: list[str] = []
    try:
        loaded = manager(two_checkpoints_once, said).load()
    finally:
        path.write_bytes(intact)
    assert loaded is not None
    assert loaded.name == "000010"
    assert len(said) == 1
    assert path.name in said[0]
    again = manager(two_checkpoints_once).load()  # the control: without the flip the newest is used
    assert again is not None
    assert again.name == "000020"


def test_weights_load_without_the_replay(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    shutil.rmtree(tmp_path / "replay")
    loaded = manager(tmp_path).load(with_replay=False)
    assert loaded is not None
    assert loaded.name == "000020"
    assert same(manager(tmp_path).load_named("000010").state, state_at(10))
    with pytest.raises(ReverieError, match=r"00000000\.safetensors is damaged \(missing\)"):
        manager(tmp_path).restore_buffers(loaded, {"replay": Rows(0)})


def test_all_damaged_is_an_error_that_names_each(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    emptied(tmp_path / "checkpoints/000010/state.json")
    emptied(tmp_path / "checkpoints/000020/manifest.json")
    with pytest.raises(ReverieError, match=r"(?s)000020.*manifest\.json: empty.*000010.*state\.json: 0 bytes"):
        manager(tmp_path).load()


def test_a_run_that_went_back_replaces_what_it_left(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    flip_bit(tmp_path / "replay/replay/00000001.safetensors", 0.9, 0)
    resumed = manager(tmp_path)
    loaded = resumed.load()
    assert loaded is not None
    resumed.restore_buffers(loaded, {"replay": Rows(0)})
    resumed.save("000020", {**state_at(20), "again": True}, {"replay": Rows(2)})
    said: list[str] = []
    newest = manager(tmp_path, said).load()
    assert newest is not None
    assert newest.state.get("again") is True
    assert said == []


def test_a_save_between_drops_the_damaged_future_and_keeps_the_spare(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    flip_bit(tmp_path / "checkpoints/000020/arrays.safetensors", 0.99, 3)
    resumed = manager(tmp_path)
    loaded = resumed.load()
    assert loaded is not None
    resumed.restore_buffers(loaded, {"replay": Rows(0)})
    resumed.save("000015", state_at(15), {"replay": Rows(1)})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["000010", "000015", "latest"]


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"../../etc", b"000010\n"])
def test_latest_is_only_a_hint(content: bytes | None, tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    latest = tmp_path / "checkpoints" / "latest"
    latest.unlink()
    if content is not None:
        latest.write_bytes(content)
    said: list[str] = []
    loaded = manager(tmp_path, said).load()
    assert loaded is not None
    assert loaded.name == "000020"
    assert len(said) == (0 if content in (None, b"000010\n") else 1)


def test_a_named_checkpoint_must_be_there_and_whole(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    for name in ("000030", "../checkpoints/000010", "latest", ""):
        with pytest.raises(ReverieError, match="there is: 000010, 000020"):
            manager(tmp_path).load_named(name)
    emptied(tmp_path / "checkpoints/000020/arrays.safetensors")
    with pytest.raises(ReverieError, match=r"000020 is damaged \(arrays\.safetensors: 0 bytes"):
        manager(tmp_path).load_named("000020")


def rewrite_manifest(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """What a stranger could do: change the manifest and sign it again."""
    content = json.loads(path.read_bytes())
    content.pop("digest")
    change(content)
    signature = digest(json.dumps(content, sort_keys=True, indent=1).encode())
    path.write_bytes(json.dumps({**content, "digest": signature}, sort_keys=True, indent=1).encode())


def test_another_format_version_is_a_sentence(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    rewrite_manifest(tmp_path / "checkpoints/000020/manifest.json", lambda content: content.update(version=99))
    with pytest.raises(ReverieError, match=r"checkpoint 000020 .* format version 99 .* reads version"):
        manager(tmp_path).load()


@pytest.mark.parametrize("buffer", ["../../elsewhere", "..", "/etc", ""])
def test_a_strangers_manifest_cannot_lead_out_of_the_folder(buffer: str, tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    rewrite_manifest(
        tmp_path / "checkpoints/000020/manifest.json",
        lambda content: content.update(chunks={buffer: content["chunks"]["replay"]}),
    )
    said: list[str] = []
    loaded = manager(tmp_path, said).load()
    assert loaded is not None
    assert loaded.name == "000010"
    assert "not a manifest" in said[0]


class Bomb:
    def __init__(self, target: Path) -> None:
        self._target = target

    def __reduce__(self) -> tuple[Callable[[Path], None], tuple[Path]]:
        return (Path.touch, (self._target,))


def test_a_strangers_pickle_is_never_executed(tmp_path: Path) -> None:
    two_checkpoints(tmp_path)
    bomb = pickle.dumps(Bomb(tmp_path / "exploded"))
    for name in ("state.pkl", "weights.pt", "arrays.pt"):
        (tmp_path / "checkpoints" / "000020" / name).write_bytes(bomb)
    assert manager(tmp_path).load_named("000020").name == "000020"
    # In place of the array file and properly signed, the pickle is read as arrays only, and refused.
    target = tmp_path / "checkpoints" / "000020" / "arrays.safetensors"
    target.write_bytes(bomb)
    record = {"size": len(bomb), "digest": digest(bomb)}
    rewrite_manifest(target.with_name("manifest.json"), lambda content: content["files"].update({target.name: record}))
    said: list[str] = []
    loaded = manager(tmp_path, said).load()
    assert loaded is not None
    assert loaded.name == "000010"
    assert len(said) == 1
    assert not (tmp_path / "exploded").exists()
    pickle.loads(bomb)  # the control: executed, it would have left its trace
    assert (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, r"no space left on device.*Free space"),
        (errno.EROFS, r"read-only file system.*Make the folder writable"),
        (errno.EACCES, r"permission denied.*Make the folder writable"),
        (errno.EIO, r"input/output error.*Check the disk"),
    ],
)
@pytest.mark.parametrize("step", ["_write_chunk", "_write_folder", "_publish", "_point_latest"])
def test_a_refused_write_is_a_sentence(
    step: str, number: int, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_checkpoints(tmp_path)
    saver = manager(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(saver, step, refuse)
    with pytest.raises(ReverieError, match=f"(?s)cannot save checkpoint 000030 .*{words}.*reverie resume"):
        saver.save("000030", state_at(30), {"replay": Rows(3)})
    assert not list(tmp_path.rglob(".tmp-*"))
    said: list[str] = []
    loaded = manager(tmp_path, said).load()
    assert loaded is not None
    # After the rename the new checkpoint counts, though `latest` could not be moved.
    assert loaded.name == ("000030" if step == "_point_latest" else "000020")
    assert said == []


@pytest.mark.parametrize(("settings_", "key"), [({"keep": 1}, "keep"), ({"every_steps": 0}, "every_steps")])
def test_wrong_settings_are_refused(settings_: dict[str, int], key: str) -> None:
    with pytest.raises(ReverieError, match=rf"checkpoint\.{key} is"):
        CheckpointConfig(**settings_)
