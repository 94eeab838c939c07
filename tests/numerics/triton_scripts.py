"""Scripts that tests of kernels start, each in a process of its own: Triton decides once whether it interprets."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HAS_TRITON = importlib.util.find_spec("triton") is not None
needs_triton = pytest.mark.skipif(not HAS_TRITON, reason="there is no Triton for this system")


def said(script: str, **environment: str) -> Any:
    """The JSON that ``script`` of this folder prints."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(__file__).parent / script)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
