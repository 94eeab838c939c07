"""Where the agent of a run plays when a task is named for it."""

from __future__ import annotations

from typing import Any

from reverie.commands.composition import composed
from reverie.configuration import plain
from reverie.saved_agent import moved_to


def run_config(task: str, *settings: str) -> dict[str, Any]:
    """What says where a run plays."""
    config = composed(task, list(settings))
    return {key: plain(config[key]) for key in ("task", "environment")}


def simulator(stored: dict[str, Any], task: str) -> dict[str, Any]:
    """Of the run's configuration, moved to ``task`` as `reverie eval --task` does it."""
    return plain(moved_to(stored, composed(task), where="a run").environment.simulator)


def test_a_run_s_own_task_keeps_the_options_that_it_learned_with() -> None:
    stored = run_config("builtin_memory", "environment.simulator.delay=9")
    assert simulator(stored, "builtin_memory")["delay"] == 9
    assert simulator(stored, "builtin_image")["delay"] == 4, "another task of the suite has the suite's own"


def test_the_same_task_in_another_simulator_has_the_options_of_that_one() -> None:
    stored = run_config("carracing_continuous", "environment=carracing_fast", "environment.simulator.size=32")
    found = simulator(stored, "carracing_continuous")
    assert found["_target_"].endswith("CarracingEnvironment")
    assert found["size"] == 64
