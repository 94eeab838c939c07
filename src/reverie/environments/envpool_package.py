"""EnvPool: many simulators of one kind in one C++ object."""

from __future__ import annotations

import warnings
from typing import Any

from reverie.environments.base import simulator_package
from reverie.types import ReverieError, require


def made_pool(name: str, *, task: str, extra: str, num_envs: int, seed: int, num_threads: int, **options: Any) -> Any:
    """EnvPool's environment ``name`` with Gymnasium's interface; resets come in the step after the last one."""
    require("environment.num_envs", num_envs, at_least=1)
    require("environment.simulator.num_threads", num_threads, at_least=0)
    package = simulator_package("envpool", task=task, extra=extra)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the precision of bounds in its own spaces
            return package.make(
                name, env_type="gymnasium", num_envs=num_envs, seed=seed, num_threads=num_threads, **options
            )
    except ImportError as error:
        # Its procgen draws with Qt, which no Python package brings along in a way that EnvPool would find.
        raise ReverieError(
            f"{task} needs the Qt 5 libraries of the system ({' '.join(str(error.__cause__ or error).split())}): "
            "run apt install libqt5gui5."
        ) from error
