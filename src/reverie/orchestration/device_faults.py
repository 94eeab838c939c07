"""A device that fails under a run: said in one sentence, with what is left to go on with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from reverie.types import ReverieError, RunStoppedError


@contextmanager
def said_in_a_sentence(device: torch.device, left: Callable[[], str]) -> Iterator[None]:
    """``left`` says what is left of the run. Other errors pass: they are mistakes of ours, and want a traceback."""
    try:
        yield
    except (RuntimeError, ReverieError) as error:
        if is_want_of_memory(error):
            what = (
                f"{device} has too little memory: choose a smaller size=, training.batch_size or training.batch_length"
            )
        elif isinstance(fault := _reason(error), torch.AcceleratorError):
            what = f"{device} failed ({str(fault).splitlines()[0]}): see docs/guides/troubleshooting.md"
        else:
            raise
        raise RunStoppedError(f"{what}; {left()}.") from error


def is_want_of_memory(error: Exception) -> bool:
    return isinstance(_reason(error), torch.OutOfMemoryError)


def _reason(error: BaseException) -> BaseException:
    """A recording that fails for such a reason is reported as one that cannot be made."""
    return error.__cause__ if isinstance(error, ReverieError) and error.__cause__ is not None else error
