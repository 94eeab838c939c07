"""Tests that need a CUDA device. Elsewhere they are not collected: nothing is missing there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parent.parent / "end_to_end"))

from killer import Killer

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture(scope="session")
def killer(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Iterator[Killer]:
    one = Killer(tmp_path_factory.mktemp("home"), repo_root / "src")
    yield one
    one.close()
