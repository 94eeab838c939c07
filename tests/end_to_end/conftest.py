"""What the tests with real runs share: the process that forks them, and one run that nothing disturbed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from killer import Killer
from same_run import SMALL_RUN


@pytest.fixture(scope="session")
def killer(tmp_path_factory: pytest.TempPathFactory, repo_root: Path) -> Iterator[Killer]:
    one = Killer(tmp_path_factory.mktemp("home"), repo_root / "src")
    yield one
    one.close()


@pytest.fixture(scope="session")
def reference(killer: Killer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small run, uninterrupted. Nobody writes into it: copy it."""
    run = tmp_path_factory.mktemp("reference") / "run"
    ended = killer.run("train", *SMALL_RUN, f"logdir={run}")
    assert ended.code == 0, ended.output
    return run
