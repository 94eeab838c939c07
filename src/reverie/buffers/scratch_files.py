"""Files that stand in for memory: mapped, and without a name, so that nothing of them outlives the process."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from reverie.runtime.durable_files import TEMPORARY_PREFIX, reason, remedy
from reverie.types import ReverieError


class ScratchFiles:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def array(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Zeroed bytes that the system writes to the disk when memory gets tight. Room for them is taken at once."""
        path = self._folder / f"{TEMPORARY_PREFIX}{name.replace('/', '-')}"
        size = int(np.prod(shape))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("w+b") as file:
                file.truncate(size)
                if hasattr(os, "posix_fallocate"):  # a full disk would else end the process at some later write
                    os.posix_fallocate(file.fileno(), 0, size)
                mapped = np.memmap(file, dtype=np.uint8, mode="r+", shape=shape)
        except OSError as error:
            raise ReverieError(
                f"cannot take {size:,} bytes for replay in {self._folder}: {reason(error)}. {remedy(error)}, or choose "
                "another `logdir`."
            ) from error
        finally:
            with suppress(OSError):  # the first error is the one to report
                path.unlink()
        return torch.from_numpy(mapped)
