"""A device that fails under a run: said in one sentence, with what is left to go on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from reverie.types import ReverieError, RunStoppedError

_FAULTS = ("CUDA error", "Triton Error [CUDA]", "cuDNN error")
"""How what CUDA, Triton and cuDNN say begins."""


@contextmanager
def said_in_a_sentence(device: torch.device, left: Callable[[], str]) -> Iterator[None]:
    """``left`` says what is left of the run. Other errors pass: they are mistakes of ours, and want a traceback."""
    try:
        yield
    except (RuntimeError, ReverieError) as error:
        if is_want_of_memory(error):
            todo = "choose a smaller size=, training.batch_size or training.batch_length"
            what = f"{device} has too little memory: {todo}"
        elif isinstance(error, RuntimeError) and str(error).startswith(_FAULTS):
            what = f"{device} failed ({str(error).splitlines()[0]}): see docs/guides/troubleshooting.md"
        else:
            raise
        raise RunStoppedError(f"{what}; {left()}.") from error


def is_want_of_memory(error: Exception) -> bool:
    """Also of a recording, whose failure is reported as one that cannot be made."""
    reason = error.__cause__ if isinstance(error, ReverieError) else error
    return isinstance(reason, torch.OutOfMemoryError) or str(reason).startswith("CUDA error: out of memory")
