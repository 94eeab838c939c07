"""Writes the episodes of a dataset in formats that other codes read; importing them again gives the same rows."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from reverie.datasets.dataset import Dataset
from reverie.datasets.episode_rows import OBS_PREFIX, EpisodeRows
from reverie.datasets.spaces_json import spaces_content
from reverie.datasets.writer import refuse_existing
from reverie.interop.data_packages import data_package
from reverie.interop.hdf5_episodes import SPACES_ATTRIBUTE
from reverie.interop.npz_episodes import NOT_OBSERVED, SPACES_FILE
from reverie.runtime.durable_files import TEMPORARY_PREFIX, reason, remedy, sync_folder, write_synced
from reverie.types import ReverieError, Space


def export_npz(dataset: Dataset, dest: Path) -> None:
    """A folder with one file per episode, in the layout of the older Dreamer codes: see npz_episodes.py."""
    spaces = dataset.index.spaces
    for key in spaces.obs:
        if key in NOT_OBSERVED or key.startswith("log_"):
            raise ReverieError(f"an npz file cannot hold the observation `{key}`: the layout has another use for it")
    with _made(dest) as temporary:
        temporary.mkdir(parents=True)
        for number, rows in enumerate(dataset.episodes()):
            name = f"{number:08d}-{len(rows['reward'])}.npz"
            write_synced(temporary / name, [_npz(rows, spaces.action)])
        write_synced(temporary / SPACES_FILE, [json.dumps(spaces_content(spaces), indent=1).encode()])
        sync_folder(temporary)


def export_hdf5(dataset: Dataset, dest: Path) -> None:
    """One file with a group per episode: observations, actions, rewards, terminations, truncations."""
    h5py = data_package("h5py", what="an HDF5 export")
    with _made(dest) as temporary:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(temporary, "w") as root:
            root.attrs[SPACES_ATTRIBUTE] = json.dumps(spaces_content(dataset.index.spaces))
            for number, rows in enumerate(dataset.episodes()):
                group = root.create_group(f"episode_{number:08d}")
                for key, value in _transitions(rows).items():
                    group[key] = value
        with temporary.open("rb") as file:
            os.fsync(file.fileno())


FORMATS: dict[str, Callable[[Dataset, Path], None]] = {"npz": export_npz, "hdf5": export_hdf5}


def _npz(rows: EpisodeRows, action_space: Space) -> memoryview:
    action = rows["action"]
    if isinstance(action_space.classes, int):  # one choice is a one-hot vector in those codes
        action = np.eye(action_space.classes, dtype=np.float32)[action]
    led = np.concatenate([np.zeros_like(action[:1]), action[:-1]])
    arrays = {name.removeprefix(OBS_PREFIX): value for name, value in rows.items()}
    arrays |= {"action": led, "discount": 1 - rows["is_terminal"].astype(np.float32)}
    text = io.BytesIO()
    # By hand: savez takes names such as `file` for itself, and its arguments differ between versions of numpy.
    with zipfile.ZipFile(text, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, value in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, value, allow_pickle=False)
    return text.getbuffer()


def _transitions(rows: EpisodeRows) -> dict[str, np.ndarray]:
    obs = {f"observations/{name.removeprefix(OBS_PREFIX)}": rows[name] for name in rows if name.startswith(OBS_PREFIX)}
    is_last = rows["is_last"][1:]
    return obs | {
        "actions": rows["action"][:-1],
        "rewards": rows["reward"][1:],
        "terminations": rows["is_terminal"][1:],
        "truncations": is_last & ~rows["is_terminal"][1:],
    }


@contextmanager
def _made(dest: Path) -> Iterator[Path]:
    """The temporary name of ``dest``, which gets its own when the block ends well, and is removed when it does not."""
    dest = dest.absolute()
    refuse_existing(dest)
    temporary = dest.with_name(TEMPORARY_PREFIX + dest.name)
    try:
        _remove(temporary)  # left behind by a process that was killed
        yield temporary
        refuse_existing(dest)
        temporary.rename(dest)
        sync_folder(dest.parent)
    except OSError as error:
        raise ReverieError(
            f"cannot export to {dest}: {reason(error)}. {remedy(error)}, or choose another name."
        ) from error
    finally:
        _remove(temporary)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
