"""How many processors this process may use, and how they are shared out."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """Those it is allowed to run on, where the system can say so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_shares(num_shares: int) -> list[list[int]]:
    """The processors that this process may run on, dealt out to so many others.

    Empty shares stand for no limit: there are fewer processors than shares, or the system has no such limits.
    """
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(usable) < num_shares:
        return [[] for _ in range(num_shares)]
    return [usable[share::num_shares] for share in range(num_shares)]
