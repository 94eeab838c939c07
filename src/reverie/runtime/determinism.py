"""Where torch need not look for kernels with one order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def unordered() -> Iterator[None]:
    """For operations whose result does not depend on an order, such as writes to places that all differ.

    Asked for one order, torch would sort what such an operation writes first: a dozen kernels instead of one.
    """
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
