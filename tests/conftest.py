"""What every test gets: one torch thread, an environment of its own, and long tests only on request."""

from __future__ import annotations

import copy
import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import absl.logging
import pytest
import torch
from omegaconf import OmegaConf

# Two workers on two cores: more threads than that make small tensors slower by an order of magnitude.
torch.set_num_threads(1)

# Hydra closes all log handlers, and absl's (bsuite and dm_control bring it) would take pytest's stderr along.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="run the tests marked `long` too")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests are deselected, not skipped: a skip would say that something is missing here."""
    if config.getoption("--all"):
        return
    long_items = [item for item in items if item.get_closest_marker("long")]
    if long_items:
        config.hook.pytest_deselected(items=long_items)
        items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_collection_finish() -> None:
    """What was imported by now stays to the end: the collector of garbage need not look at it again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Triton complains of what nobody collects at the end."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="session")
def configs_are_parsed_once() -> Iterator[None]:
    """Hydra reads some twenty files for a composition, and the tests compose several hundred times."""
    load, kept = OmegaConf.load, {}

    def loaded(file: Any) -> Any:
        path = Path(file if isinstance(file, str | Path) else file.name)
        key = path, path.stat().st_mtime_ns, path.stat().st_size
        if key not in kept:
            kept[key] = load(file)
        return copy.deepcopy(kept[key])

    with mock.patch.object(OmegaConf, "load", staticmethod(loaded)):
        yield


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """The user's W&B, Hydra and TensorBoard settings do not reach a test, nor does the launcher that started it."""
    with mock.patch.dict(os.environ):
        for name in list(os.environ):
            if name.startswith(("WANDB_", "HYDRA_", "TENSORBOARD_", "REVERIE_COMMAND")):
                del os.environ[name]
        yield


@pytest.fixture(autouse=True)
def own_arithmetic() -> Iterator[None]:
    """A run inside the test process makes denormal numbers zero; hypothesis and the next test want them back."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(scope="session")
def repo_root() -> Path:
    """The checkout these tests lie in."""
    return Path(__file__).resolve().parent.parent
