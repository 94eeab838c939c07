"""The part of the composition root that knows datasets: which run reads one, and what then is missing or must agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig

from reverie.buffers.offline import OfflineBuffer
from reverie.commands.dataset_words import size_words
from reverie.configuration import Allow, instantiate, plain
from reverie.datasets.dataset import Dataset
from reverie.environments.suites import space_words
from reverie.environments.vector import VectorEnvironment
from reverie.node_walk import is_node
from reverie.orchestration.evaluator import EvaluationConfig
from reverie.orchestration.no_environment import NoEnvironment
from reverie.orchestration.phases import PhaseSpec
from reverie.runtime.compilation import eager_steps
from reverie.runtime.machine_memory import machine_memory
from reverie.runtime.rng import RandomStreams
from reverie.targets import located
from reverie.types import Observation, ReverieError, Space, Spaces
from reverie.workflows.base import WorldModelWorkflow


class TooLargeError(ReverieError):
    """A dataset, or what lies beside its rows, that the memory of the device cannot hold."""


def offline_buffers(config: DictConfig, *, rng: RandomStreams, allow: Allow) -> dict[str, OfflineBuffer]:
    """Every buffer that reads a dataset. The full path and the checksum are put into ``config``: a resumed run needs
    the same dataset from wherever it is started."""
    made: dict[str, OfflineBuffer] = {}
    for name, node in config.buffer.items():
        path = f"buffer.{name}"
        if not _is_offline(plain(node), path=path, allow=allow):
            continue
        folder = plain(node).get("path")
        if folder is None:
            raise ReverieError(f"`{path}.path` names no dataset: give its folder with `{path}.path=FOLDER`")
        node["path"] = str(Path(folder).absolute())
        device = rng.stream(f"replay/{name}").device
        _refuse_too_large(Dataset(Path(node["path"])).index.size_bytes, f"the dataset {node['path']}", device)
        buffer: OfflineBuffer = instantiate(node, path=path, allow=allow, rng=rng.stream(f"replay/{name}"))
        node["digest"] = buffer.digest
        made[str(name)] = buffer
    return made


def check_environment(
    config: DictConfig, phases: Sequence[PhaseSpec], evaluation: EvaluationConfig, *, has_dataset: bool
) -> None:
    """A run without a task cannot collect or evaluate, and without a dataset it has nothing to learn from."""
    if plain(config.task) is not None:
        return
    name_one = "name a task with `task=SUITE_TASK`"
    if not has_dataset:
        raise ReverieError(f"this run has no task and no dataset: {name_one}, or a dataset with buffer=offline")
    for phase in phases:
        for kind in ("collect", "evaluate"):
            if phase.has_hook(kind):
                raise ReverieError(f"phase '{phase.name}' has the hook {kind}, but there is no environment: {name_one}")
    if evaluation.every_updates is not None:
        raise ReverieError(f"`evaluation.every_updates` is set, but there is no environment: {name_one}")


def check_same_spaces(offline: Mapping[str, OfflineBuffer], env: VectorEnvironment) -> None:
    """Datasets that one agent learns from, and the environment it collects in, must look alike."""
    kind = "the other dataset" if isinstance(env, NoEnvironment) else env.task
    for name, buffer in offline.items():
        if (difference := different_spaces(buffer.spaces, env.spaces)) is not None:
            raise ReverieError(f"the dataset of `buffer.{name}` does not fit {kind}: {difference}.")


def different_spaces(expected: Spaces, found: Spaces) -> str | None:
    """In what ``found`` differs, in words; None where it does not."""
    if sorted(expected.obs) != sorted(found.obs):
        return f"observations {', '.join(sorted(expected.obs))} there, {', '.join(sorted(found.obs))} here"
    pairs: dict[str, tuple[Space, Space]] = {key: (space, found.obs[key]) for key, space in expected.obs.items()}
    for key, (one, other) in {**pairs, "the action": (expected.action, found.action)}.items():
        if one != other:
            return f"{key} is {space_words(one)} there, {space_words(other)} here"
    return None


def keep_stored(
    offline: Mapping[str, OfflineBuffer], workflow: WorldModelWorkflow, *, rng: RandomStreams, device: torch.device
) -> None:
    """Make room beside the rows for what the policy stores, found by letting it act once on zeros."""
    policy = workflow.policy(None)  # its random streams begin here
    before = rng.get_state()
    for buffer in offline.values():
        with eager_steps():  # it happens once
            _, _, stored = policy.act(policy.initial(1), _zeros(buffer.spaces, device), mode="train")
        needed = len(buffer) * sum(value.nbytes for value in stored.values())
        _refuse_too_large(needed, "what the policy stores beside the rows of a dataset", device)
        buffer.keep(stored)
    rng.set_state(before)


def shown_task(resolved: Mapping[str, Any]) -> str:
    """What a person sees as the task: that of the environment, or the name of the dataset."""
    if resolved["task"] is not None:
        return str(resolved["task"])
    nodes = [node for node in resolved["buffer"].values() if is_node(node)]
    paths = [node["path"] for node in nodes if isinstance(node.get("path"), str)]
    return f"dataset {', '.join(Path(path).name for path in paths)}"


def _refuse_too_large(needed: int, what: str, device: torch.device) -> None:
    """Before anything is allocated: all rows lie in the memory of the device."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else machine_memory().available_bytes
    if free is not None and needed > free:
        raise TooLargeError(
            f"{what} needs {size_words(needed)} of memory on {device}, of which {size_words(free)} are "
            "free: use another device, or a part of the data"
        )


def _is_offline(node: Any, *, path: str, allow: Allow) -> bool:
    if not is_node(node):
        return False
    target = located(node["_target_"], path=f"{path}._target_", allow=allow)
    return isinstance(target, type) and issubclass(target, OfflineBuffer)


def _zeros(spaces: Spaces, device: torch.device) -> Observation:
    obs = {
        key: torch.zeros((1, *space.shape), dtype=getattr(torch, space.dtype), device=device)
        for key, space in spaces.obs.items()
    }
    yes = torch.ones(1, dtype=torch.bool, device=device)
    return Observation(obs=obs, reward=torch.zeros(1, device=device), is_first=yes, is_last=~yes, is_terminal=~yes)
