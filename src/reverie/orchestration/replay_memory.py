"""Whether replay will fit: asked before the first step, because memory runs out in the middle of a night."""

from __future__ import annotations

import torch

from reverie.orchestration.parts import Parts
from reverie.orchestration.phases import PhaseSpec
from reverie.runtime.compilation import eager_steps
from reverie.runtime.machine_memory import machine_memory
from reverie.types import Observation, Policy, ReverieError, Row, Space

_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "int64": torch.int64}


def check_memory(phases: tuple[PhaseSpec, ...], parts: Parts, *, free_bytes: int | None = None) -> None:
    """Refuse buffers that this run would fill beyond what is free. ``free_bytes`` None asks the machine."""
    free = _free(parts.device) if free_bytes is None else free_bytes
    if free is None:
        return
    width = row_bytes(parts)
    rows = {name: _rows(name, phases, parts) for name in parts.buffers}
    needed = sum(rows.values()) * width
    if needed <= free:
        return
    name = max(rows, key=rows.__getitem__)
    others = (sum(rows.values()) - rows[name]) * width
    where = "the device" if parts.device.type == "cuda" else "memory"
    raise ReverieError(
        f"replay will not fit: {sum(rows.values()):,} rows of {width:,} bytes need {_gib(needed)}, but {_gib(free)} of "
        f"{where} are free here; set buffer.{name}.capacity to at most {max(0, free - others) // width:,}."
    )


def row_bytes(parts: Parts) -> int:
    """Of one row with all that the policy stores beside it, found by acting once on an empty observation."""
    policy = parts.workflow.policy(None)
    before = parts.rng.get_state()  # after its streams were made: the run must not miss what is drawn here
    row = _made_up_row(policy, parts)
    parts.rng.set_state(before)
    flags = (row.reward, row.is_first, row.is_last, row.is_terminal)
    return sum(value.nbytes for value in (*row.obs.values(), *row.stored.values(), row.action, *flags))


def _made_up_row(policy: Policy, parts: Parts) -> Row:
    no = torch.zeros(1, dtype=torch.bool, device=parts.device)
    seen = Observation(
        obs={key: _zeros(space, parts.device) for key, space in parts.train_env.spaces.obs.items()},
        reward=torch.zeros(1, device=parts.device),
        is_first=~no,
        is_last=no,
        is_terminal=no,
    )
    with eager_steps():
        _, action, stored = policy.act(policy.initial(1), seen, mode="train")
    return Row.complete(seen, action, stored)


def _zeros(space: Space, device: torch.device) -> torch.Tensor:
    return torch.zeros(1, *space.shape, dtype=_DTYPES[space.dtype], device=device)


def _rows(name: str, phases: tuple[PhaseSpec, ...], parts: Parts) -> int:
    """Rows that this run brings into the buffer. A GPU gives all memory at once, a processor as it is used."""
    buffer = parts.buffers[name]
    capacity = buffer.capacity - len(buffer)  # a dataset is there already
    collecting = [phase.duration_steps for phase in phases if phase.buffer == name and phase.has_hook("collect")]
    if parts.device.type == "cuda" or not collecting or None in collecting:
        return capacity
    return min(capacity, sum(steps for steps in collecting if steps is not None))


def _free(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return machine_memory().available_bytes


def _gib(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"
