"""How many processors this process may use."""

from __future__ import annotations

import os


def usable_processors() -> int:
    """Those it is allowed to run on, where the system can say so."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
