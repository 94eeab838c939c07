"""The time that is left, as far as steps or updates can tell it."""

from __future__ import annotations

from typing import Any

import pytest

from reverie.orchestration.logger import Counters
from reverie.orchestration.phases import parse_phases
from reverie.orchestration.progress_meter import ProgressMeter
from reverie.orchestration.scoreboard import Scoreboard
from reverie.orchestration.stopwatch import Stopwatch

LEARN = {"name": "learn", "type": "offline", "buffer": "replay", "duration_updates": 50}
LEARN |= {"workflow_hooks": [{"update": {"batch": {"size": 2, "length": 4}}}]}
COLLECT = {"name": "collect", "type": "online", "buffer": "replay", "duration_steps": 100}
COLLECT |= {"workflow_hooks": ["collect"]}


def left(phases: list[dict[str, Any]], *, steps: int, updates: int, phase_index: int = 0) -> float | None:
    """After ten seconds."""
    meter = ProgressMeter(parse_phases(phases), {"experiment": "one", "task": "any", "logdir": "here"})
    counters = Counters(agent_steps=steps, env_frames=steps, updates=updates, wall_seconds=10.0)
    stopwatch, scores = Stopwatch(), Scoreboard()
    stopwatch._start -= 10.0
    return meter.progress(
        counters, phase_index=phase_index, scoreboard=scores, stopwatch=stopwatch, is_last=False
    ).seconds_left


def test_steps_tell_the_time_and_where_there_are_none_updates_do() -> None:
    assert left([COLLECT, LEARN], steps=25, updates=0) == pytest.approx(30.0, rel=0.1)
    assert left([LEARN], steps=0, updates=20) == pytest.approx(15.0, rel=0.1)


def test_nothing_is_told_before_the_first_of_them_or_while_they_stand_still() -> None:
    assert left([COLLECT], steps=0, updates=0) is None
    assert left([COLLECT, LEARN], steps=100, updates=7, phase_index=1) is None
    more = COLLECT | {"name": "more"}
    assert left([COLLECT, LEARN, more], steps=100, updates=7, phase_index=1) is None
