"""The memory of this machine, or what a container may have of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """How much there is for us in all, and how much of it is left."""

    total_bytes: int
    available_bytes: int | None
    """None where the system does not say."""
    is_limit: bool = False
    """The total is a limit of the control group, less than what the machine has."""


def machine_memory(root: Path = Path("/")) -> Memory:
    """What the kernel says under ``root``/proc, and the tightest limit of our control group and those above it."""
    machine = _machine(root / "proc" / "meminfo")
    limits = list(_limits(root))
    if machine.available_bytes is None or not limits:
        return machine
    total = min(limit for limit, _ in limits)
    left = min(limit - used for limit, used in limits)
    return Memory(
        total_bytes=min(machine.total_bytes, total),
        available_bytes=max(0, min(machine.available_bytes, left)),
        is_limit=total < machine.total_bytes,
    )


def _machine(meminfo: Path) -> Memory:
    if not meminfo.is_file():  # no Linux
        return Memory(total_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), available_bytes=None)
    kibibytes = _numbers(meminfo)
    return Memory(total_bytes=kibibytes["MemTotal"] * 1024, available_bytes=kibibytes["MemAvailable"] * 1024)


def _limits(root: Path) -> Iterator[tuple[int, int]]:
    """Limit and use of every control group that holds us and has a limit."""
    listing = root / "proc" / "self" / "cgroup"
    lines = listing.read_text().splitlines() if listing.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", maxsplit=2)
        mounted = root / "sys" / "fs" / "cgroup"
        if controllers == "":
            names = ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            mounted /= "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        # A container may see a path of the host that does not exist inside; its own group is then the mounted one.
        inner = mounted / path.lstrip("/")
        for group in (inner, *inner.parents):
            found = _limit(group, *names) if group.is_relative_to(mounted) else None
            if found is not None:
                yield found


def _limit(group: Path, limit_name: str, use_name: str, cache_name: str) -> tuple[int, int] | None:
    try:
        limit = (group / limit_name).read_text().strip()
        used = int((group / use_name).read_text())
        cached = _numbers(group / "memory.stat").get(cache_name, 0)  # files kept in memory: given up when it gets tight
    except OSError:
        return None  # the group above all has none of these files
    return None if limit == "max" else (int(limit), used - cached)


def _numbers(file: Path) -> dict[str, int]:
    """Lines such as `MemTotal: 24684100 kB` or `inactive_file 4096`."""
    words = [line.replace(":", " ").split() for line in file.read_text().splitlines()]
    return {line[0]: int(line[1]) for line in words if len(line) > 1 and line[1].isdecimal()}
