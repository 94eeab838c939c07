"""The black box of a run: everything one update started from, as a folder that `reverie replay-update` executes again.

    <run>/blackbox/<agent steps>-<updates>/{state.json, arrays.safetensors, manifest.json}

Arrays and JSON only, as in a checkpoint; the folder needs neither the run nor its simulator.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from reverie.orchestration.manifest import MANIFEST_FILE, DamageError
from reverie.orchestration.run_folder import hardware, source_commit, versions
from reverie.orchestration.state_folder import (
    publish_folder,
    read_manifest,
    read_state,
    temporary_name,
    write_state_folder,
)
from reverie.runtime.durable_files import sync_folder
from reverie.runtime.rng import RandomStreams
from reverie.types import Batch, Phase, ReverieError, RowIndex, State
from reverie.workflows.base import WorldModelWorkflow

FOLDER = "blackbox"
_ROW_KEYS = ("reward", "is_first", "is_last", "is_terminal", "action")
_KEYS = {
    *("hook", "agent_steps", "updates", "device", "phase", "batch", "workflow_name", "workflow", "random_streams"),
    *("metrics", "config", "versions", "hardware", "commit"),
}


def origin(workflow: WorldModelWorkflow, rng: RandomStreams, phase: Phase) -> State:
    """What the next update starts from, copied: weights, optimisers, every random stream and the phase.

    To be taken right before the update, also where that is a captured graph: the host knows all of it.
    """
    return {
        "workflow_name": type(workflow).__name__,
        "workflow": workflow.get_state(),
        "random_streams": rng.get_state(),
        "phase": {
            "name": phase.name,
            "type": phase.type,
            "progress": phase.progress.clone(),
            "controller": phase.controller,
        },
    }


def batch_state(batch: Batch | None) -> State | None:
    """A copy of the batch, which a captured graph would overwrite with the next one."""
    if batch is None:
        return None
    return {
        "obs": {key: value.clone() for key, value in batch.obs.items()},
        "stored": {key: value.clone() for key, value in batch.stored.items()},
        "index": {"stream": batch.index.stream.clone(), "row": batch.index.row.clone()},
        "weight": None if batch.weight is None else batch.weight.clone(),
        **{name: getattr(batch, name).clone() for name in _ROW_KEYS},
    }


def batch_from(state: State) -> Batch:
    """The batch that ``batch_state`` copied."""
    rows: dict[str, Any] = {name: state[name] for name in _ROW_KEYS}
    rows["weight"] = state.get("weight")  # a box from before there were weights has none
    return Batch(obs=state["obs"], stored=state["stored"], index=RowIndex(**state["index"]), **rows)


def phase_from(state: State, device: torch.device) -> Phase:
    return Phase(**{**state, "progress": state["progress"].to(device)})


class BlackBox:
    """Writes black boxes of one run. ``config`` is the run's resolved configuration."""

    def __init__(self, run: Path, *, config: Mapping[str, Any]) -> None:
        self.run = run
        self._config = dict(config)

    def write(self, content: State) -> Path:
        """A whole folder, or an OSError; one of the same name holds the same update and is replaced."""
        folder = self.run / FOLDER / f"{content['agent_steps']:010d}-{content['updates']:010d}"
        around = {
            "config": self._config,
            "versions": versions(),
            "hardware": hardware(),
            "commit": source_commit(),
        }
        write_state_folder(temporary_name(folder), {**content, **around}, {})
        publish_folder(folder)
        sync_folder(self.run)
        return folder


def read_black_box(folder: Path) -> State:
    """What ``write`` put there, every checksum compared."""
    if not (folder / MANIFEST_FILE).is_file():
        raise ReverieError(f"`{folder}` is not a black box: it holds no {MANIFEST_FILE} (they lie in RUN/{FOLDER}/)")
    try:
        state = read_state(folder, read_manifest(folder))
    except DamageError as damage:
        raise ReverieError(f"the black box {folder} is damaged ({damage}): copy it again from the run") from damage
    if not state.keys() >= _KEYS:
        raise ReverieError(f"`{folder}` is not a black box: it holds something else (they lie in RUN/{FOLDER}/)")
    return state
