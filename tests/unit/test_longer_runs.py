"""What lengthens a run that has finished: the name that its last phase goes by."""

from __future__ import annotations

from typing import Any

import pytest

from reverie.session import _longer

EVALUATE = {"name": "end", "duration_cycles": 1}


@pytest.mark.parametrize(
    ("training", "expected"),
    [
        ({"total_timesteps": 100, "phases": [{"duration_steps": 100}, EVALUATE]}, "training.total_timesteps"),
        ({"total_updates": 50, "phases": [{"duration_updates": 50}]}, "training.total_updates"),
        (
            {"total_timesteps": 100, "phases": [{"duration_steps": 100}, {"duration_updates": 7}, EVALUATE]},
            "training.phases.1.duration_updates",
        ),
        (
            {"total_timesteps": 9, "phases": [{"duration_steps": 9}, {"duration_steps": 4}]},
            "training.phases.1.duration_steps",
        ),
        (
            {"total_timesteps": 9, "phases": [{"repeat": 2, "phases": [{"duration_steps": 9}]}]},
            "training.total_timesteps",
        ),
        (
            {"total_timesteps": 9, "phases": [EVALUATE, {"repeat": 2, "phases": [EVALUATE, {"duration_steps": 4}]}]},
            "training.phases.1.phases.1.duration_steps",
        ),
        ({"total_timesteps": 9, "phases": [EVALUATE]}, "training.phases.K.duration_cycles"),
    ],
)
def test_the_last_phase_with_a_length_is_named(training: dict[str, Any], expected: str) -> None:
    assert _longer(training) == expected
