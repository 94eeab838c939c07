"""What a run will need of memory and disk, beside what is free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reverie.probe import Probed


@dataclass(frozen=True, kw_only=True, slots=True)
class Need:
    """One thing of which there is only so much."""

    name: str
    parts: Mapping[str, int] = field(default_factory=dict)
    """Bytes by what they are for."""
    free_bytes: int | None
    """None where the system does not say."""
    remedy: str
    """What to change where it does not fit."""

    @property
    def needed_bytes(self) -> int:
        return sum(self.parts.values())

    @property
    def fits(self) -> bool:
        return self.free_bytes is None or self.needed_bytes <= self.free_bytes


def needs(probed: Probed) -> tuple[Need, ...]:
    """GPU memory where the run uses a GPU, RAM, and disk."""
    gpu = () if probed.machine.gpu_bytes is None else (_gpu(probed),)
    return (*gpu, _ram(probed), _disk(probed))


def _gpu(probed: Probed) -> Need:
    measured, free = probed.measured, probed.machine.gpu_bytes
    # A GPU gives all of a buffer's memory at once, however much of it will be filled.
    held = {name: one.capacity for name, one in probed.replay.items() if one.home == "cuda" and one.rows}
    return Need(
        name="GPU memory",
        parts={"model and update": measured.gpu_bytes, "replay": sum(held.values()) * measured.row_bytes.total},
        free_bytes=free,
        remedy=_fewer_rows(held, measured.row_bytes.total, others=measured.gpu_bytes, free=free)
        or "choose a smaller size= or training.batch_size",
    )


def _ram(probed: Probed) -> Need:
    measured, free = probed.measured, probed.machine.ram_bytes
    held = {name: one.rows for name, one in probed.replay.items() if one.home == "host"}
    parts = {
        "main process": measured.main_bytes,
        "simulators": measured.worker_bytes,
        "simulators of evaluations": _evaluation_bytes(probed),
        "replay": sum(held.values()) * measured.row_bytes.total,
    }
    others = sum(parts.values()) - parts["replay"]
    remedies = ["choose a smaller size=, environment.num_envs or evaluation.envs, or end other programs"]
    if (fewer := _fewer_rows(held, measured.row_bytes.total, others=others, free=free)) is not None:
        remedies = ["set buffer.device=disk", fewer, "choose a smaller size="]
    return Need(name="RAM", parts=parts, free_bytes=free, remedy=", or ".join(remedies))


def _evaluation_bytes(probed: Probed) -> int:
    """An estimate: evaluations have simulators of their own, each as large as one of training."""
    if not probed.counts.evaluations or not probed.num_envs:
        return 0
    envs = min(probed.evaluation.envs, probed.evaluation.episodes)
    return probed.measured.worker_bytes * envs // probed.num_envs


def _disk(probed: Probed) -> Need:
    measured, free = probed.measured, probed.machine.disk_bytes
    width = measured.row_bytes
    held = {name: one.rows for name, one in probed.replay.items()}
    rows = sum(held.values())
    # While a checkpoint is written, all that are kept are still there.
    copies = min(probed.counts.checkpoints, probed.checkpoint.keep + 1)
    on_disk = sum(one.capacity for one in probed.replay.values() if one.home == "disk")
    parts = {
        "replay": rows * width.row + on_disk * width.stored,
        "checkpoints": copies * (measured.files.checkpoint_bytes + rows * width.stored),
    }
    needed = width.row + (copies + (1 if on_disk else 0)) * width.stored
    remedy = _fewer_rows(held, needed, others=copies * measured.files.checkpoint_bytes, free=free)
    return Need(
        name="disk",
        parts=parts,
        free_bytes=free,
        remedy=f"{remedy or 'choose a smaller size='}, or put the run elsewhere with logdir=FOLDER",
    )


def _fewer_rows(held: Mapping[str, int], width: int, *, others: int, free: int | None) -> str | None:
    """The capacity with which everything would fit; None where replay is not what is too large."""
    if free is None or not any(held.values()):
        return None
    name = max(held, key=held.__getitem__)
    rows = (free - others) // width - (sum(held.values()) - held[name])
    return f"set buffer.{name}.capacity={rows} or less" if rows > 0 else None
