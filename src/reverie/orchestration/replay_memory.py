"""Where replay will fit: asked before the first step, because memory runs out in the middle of a night."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from reverie.buffers.flat_rows import flat
from reverie.buffers.layout import Layout
from reverie.orchestration.phases import PhaseSpec
from reverie.runtime.compilation import eager_steps
from reverie.runtime.machine_memory import machine_memory
from reverie.runtime.rng import RandomStreams
from reverie.types import Observation, Policy, ReverieError, Row, Space, Spaces
from reverie.workflows.base import WorldModelWorkflow

HOMES = ("cuda", "host", "disk")
"""Where rows can live, the fastest first: in the memory of the GPU, in that of the host, in files mapped into it."""

_AUTO_SHARE = {"cuda": 0.6, "host": 0.8, "disk": 0.9}
"""How much of what is free `auto` takes: the update on a GPU, simulators and others need some of it too."""
_MAKE_ROOM = "make room there"
_WORDS = {"cuda": "on the GPU", "host": "in memory", "disk": "on disk"}
_DTYPES = {"uint8": torch.uint8, "float32": torch.float32, "int64": torch.int64}


@dataclass(frozen=True, kw_only=True, slots=True)
class RowBytes:
    """Of one row: what was seen and done, and what the policy stores beside it."""

    row: int
    stored: int

    @property
    def total(self) -> int:
        return self.row + self.stored


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """What one buffer will hold."""

    name: str
    capacity: int
    rows: int
    """Those that this run brings."""
    width: RowBytes
    copies: int = 0
    """Checkpoints that lie on the disk at once, each with what is stored beside all rows."""

    def bytes_in(self, home: str) -> int:
        """Memory of the host is taken as it fills; a GPU gives all at once, and files for latents are made whole."""
        if home == "cuda":
            return self.capacity * self.width.total
        if home == "disk":
            return self.written_bytes + self.capacity * self.width.stored
        return self.rows * self.width.total

    @property
    def written_bytes(self) -> int:
        """What checkpoints write of it, wherever its rows live."""
        return self.rows * (self.width.row + self.copies * self.width.stored)


@dataclass(frozen=True, kw_only=True, slots=True)
class Free:
    """Bytes that nobody uses here; None where there is no such place, or the system does not say."""

    cuda: int | None
    host: int | None
    disk: int | None

    @classmethod
    def now(cls, device: torch.device, folder: Path) -> Free:
        """``folder`` is where the run will be; it need not exist. Rows and checkpoints that it has count as free: what
        a run needs has room for all of them, those that it finds and those that take their place.
        """
        own = sum(_file_bytes(path) for kind in ("replay", "checkpoints") for path in folder.glob(f"{kind}/*/*.*"))
        while not folder.exists():
            folder = folder.absolute().parent
        return cls(
            cuda=torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else None,
            host=machine_memory().available_bytes,
            disk=shutil.disk_usage(folder).free + own,
        )

    def without(self, home: str, count: int) -> Free:
        """What is left when something else has taken ``count`` bytes."""
        left = {name: getattr(self, name) for name in HOMES}
        if left[home] is not None:
            left[home] = max(0, left[home] - count)
        return Free(**left)


@dataclass(frozen=True, kw_only=True, slots=True)
class Home:
    name: str
    reason: str
    """A sentence for the user."""


def chosen_home(need: Need, asked: str, free: Free, device: torch.device, *, is_resumed: bool = False) -> Home:
    """Where the rows go: ``asked`` is one of HOMES, or auto for the fastest that has room. ReverieError if none has.

    A run ``is_resumed`` with the capacity that it has.
    """
    possible = HOMES if device.type == "cuda" else HOMES[1:]
    if asked not in ("auto", *possible):
        choices = ", ".join(("auto", *possible))
        why = "there is no CUDA device here; " if asked == "cuda" else ""
        raise ReverieError(f"`buffer.{need.name}.device` is {asked}: {why}choose one of {choices}.")
    tried: list[str] = []
    home, usable = asked, 0
    for home in possible if asked == "auto" else (asked,):
        room = getattr(free, home)
        if room is None:
            return Home(name=home, reason=_reason(need, home, room, tried))
        usable = int(room * (_AUTO_SHARE[home] if asked == "auto" else 1))
        if need.bytes_in(home) <= usable:
            return Home(name=home, reason=_reason(need, home, room, tried))
        tried.append(f"{_size(room)} {_WORDS[home]}")
    most = usable // (need.width.total + (need.copies * need.width.stored if home == "disk" else 0))
    others = [other for other in possible if (getattr(free, other) or 0) >= need.bytes_in(other)]
    remedies = [f"set buffer.{need.name}.device={others[-1]}"] if others and asked != "auto" else []
    remedies.append(_MAKE_ROOM if is_resumed else f"set buffer.{need.name}.capacity to at most {most:,}")
    left = "auto leaves a part of each place to others; " if asked == "auto" else ""
    raise ReverieError(
        f"replay will not fit: `buffer.{need.name}` with a capacity of {need.capacity:,} rows needs "
        f"{_words(need, home)} for this run, but free are {', '.join(tried)}; {left}{', or '.join(remedies)}."
    )


def refuse_without_disk(need: Need, free: Free, folder: Path, *, is_resumed: bool = False) -> None:
    """Checkpoints write all rows, so those that live in memory need room on the disk of ``folder`` too."""
    if free.disk is None or need.written_bytes <= free.disk:
        return
    most = free.disk // (need.width.row + need.copies * need.width.stored)
    smaller = f"choose another `logdir`, or set buffer.{need.name}.capacity to at most {most:,}"
    raise ReverieError(
        f"checkpoints will not fit: they write the rows of `buffer.{need.name}`, {_size(need.written_bytes)} for this "
        f"run, but {_size(free.disk)} are free in {folder}; {_MAKE_ROOM if is_resumed else smaller}."
    )


def refuse_large_checkpoints(each: int, copies: int, free: Free, folder: Path) -> None:
    """Networks and optimisers are in every checkpoint, of which ``copies`` lie on the disk at once."""
    if free.disk is not None and each * copies > free.disk:
        raise ReverieError(
            f"checkpoints will not fit: {copies} of them, each with networks and optimisers of {_size(each)}, need "
            f"{_size(each * copies)}, but {_size(free.disk)} are free in {folder}; {_MAKE_ROOM}, or choose another "
            "`logdir` or a smaller `size`."
        )


def row_bytes(policy: Policy, spaces: Spaces, rng: RandomStreams, device: torch.device) -> RowBytes:
    """Found by letting the policy act once on an empty observation."""
    before = rng.get_state()  # after its streams were made: the run must not miss what is drawn here
    row = _made_up_row(policy, spaces, device)
    rng.set_state(before)
    # As they lie in memory: whole words, and a bit more than the sum of the fields.
    parts = Layout(flat(row)), Layout(row.stored)
    return RowBytes(row=sum(parts[0].widths.values()), stored=sum(parts[1].widths.values()))


def agent_bytes(workflow: WorldModelWorkflow) -> int:
    """Of networks and optimisers in a checkpoint: optimisers remember two numbers for each that learns, and lagged
    weights are a second copy of what a policy uses, at most all.
    """
    parameters = [one for module in workflow.modules().values() for one in (*module.parameters(), *module.buffers())]
    moments = 2 * sum(one.nbytes for one in parameters if one.requires_grad) if workflow.optimizers() else 0
    copies = 2 if workflow.acting.lags else 1
    return copies * sum(one.nbytes for one in parameters) + moments


def collected_rows(name: str, phases: tuple[PhaseSpec, ...], capacity: int) -> int:
    """Rows that a run brings into the buffer of that name, as far as it can hold them."""
    collecting = [phase.duration_steps for phase in phases if is_collected(name, phase)]
    if not collecting or None in collecting:
        return capacity
    return min(capacity, sum(steps for steps in collecting if steps is not None))


def is_collected(name: str, phase: PhaseSpec) -> bool:
    """Whether ``phase`` brings rows into the buffer of that name."""
    return phase.buffer == name and phase.has_hook("collect")


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # by a process that still has the run, which will be said when its lock is asked for


def _reason(need: Need, home: str, room: int | None, tried: list[str]) -> str:
    known = "" if room is None else f", and {_size(room)} are free"
    others = f"; too little is free elsewhere ({', '.join(tried)})" if tried else ""
    return f"Replay ({need.name}) is kept {_WORDS[home]}: {_words(need, home)}{known}{others}."


def _words(need: Need, home: str) -> str:
    """What the bytes are made of, so that a person can check them."""
    total = _size(need.bytes_in(home))
    if home == "cuda":
        return f"{total} ({need.capacity:,} rows of {need.width.total:,} bytes)"
    if home == "host":
        return f"{total} ({need.rows:,} rows of {need.width.total:,} bytes)"
    latents = f"latents of {need.width.stored:,} for {need.capacity:,} rows and {need.copies} checkpoints"
    return f"{total} ({need.rows:,} rows of {need.width.row:,} bytes, {latents})"


def _made_up_row(policy: Policy, spaces: Spaces, device: torch.device) -> Row:
    no = torch.zeros(1, dtype=torch.bool, device=device)
    seen = Observation(
        obs={key: _zeros(space, device) for key, space in spaces.obs.items()},
        reward=torch.zeros(1, device=device),
        is_first=~no,
        is_last=no,
        is_terminal=no,
    )
    with eager_steps():
        _, action, stored = policy.act(policy.initial(1), seen, mode="train")
    return Row.complete(seen, action, stored)


def _zeros(space: Space, device: torch.device) -> torch.Tensor:
    return torch.zeros(1, *space.shape, dtype=_DTYPES[space.dtype], device=device)


def _size(count: int | None) -> str:
    if count is None:
        return "an unknown amount"
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
