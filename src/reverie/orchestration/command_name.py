"""How the person at the keyboard calls Reverie and TensorBoard, for sentences that can be pasted into a shell."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

COMMAND_VARIABLE = "REVERIE_COMMAND"
"""Set by the launcher to the way it was called, for example ``./reverie``; absent where ``reverie`` is installed."""


def reverie_command(*arguments: str | Path) -> str:
    """A command line of Reverie, quoted for a shell: ``./reverie resume runs/one``."""
    return shlex.join([os.environ.get(COMMAND_VARIABLE) or "reverie", *map(str, arguments)])


def tensorboard_command(logdir: str | Path) -> str:
    """A command line that opens TensorBoard. The launcher's environment is not on PATH, so it is named there."""
    program = ["tensorboard"]
    if os.environ.get(COMMAND_VARIABLE):
        python = Path(sys.executable)
        script = python.with_name("tensorboard")
        program = [_near(script)] if script.exists() else [_near(python), "-m", "tensorboard.main"]
    return shlex.join([*program, "--logdir", str(logdir)])


def _near(path: Path) -> str:
    """Relative to the working directory where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
