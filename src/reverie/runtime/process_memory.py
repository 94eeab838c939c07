"""How much memory this process and those that it has started take."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

_M_MMAP_THRESHOLD = -3
"""The number by which glibc's mallopt knows it."""
_LARGE_BYTES = 256 * 1024


def return_large_blocks() -> None:
    """From now on memory of large blocks goes back to the system as soon as they are freed, at the price of asking for
    it again. Else the C library keeps it in its heap, where a small block that stays makes a gap of each large one.
    """
    with suppress(OSError, AttributeError):  # other C libraries have no such setting
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


def peak_bytes() -> int:
    """The most that this process has had in memory so far: what an update needs for a moment counts too."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def resident_bytes() -> int:
    """What this process has in memory now; its peak where the system does not say."""
    statm = Path("/proc/self/statm")
    if not statm.is_file():  # no Linux
        return peak_bytes()
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def children_bytes(proc: Path = Path("/proc")) -> int:
    """What all processes below this one have in memory, each page divided among those that share it; 0 where the
    system does not say."""
    parents: dict[int, int] = {}
    for status in proc.glob("[0-9]*/stat"):
        try:
            # The name in the second field may hold spaces and brackets; the last bracket ends it.
            parents[int(status.parent.name)] = int(status.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue  # it has ended since it was listed
    return sum(_shared_fairly(proc / str(pid)) for pid in parents if _is_below(pid, os.getpid(), parents))


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while (pid := parents.get(pid, 0)) != 0:
        if pid == ancestor:
            return True
    return False


def _shared_fairly(process: Path) -> int:
    try:
        lines = (process / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0  # it has ended, or belongs to somebody else
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
