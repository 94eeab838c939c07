"""A benchmark on a CUDA device: the update and each of its parts are recorded and replayed."""

from __future__ import annotations

import pytest

from reverie.benchmark import SPACES, Conditions, update_speed
from reverie.commands.composition import composed_run

SMALL = ("size=debug", "size.depth=8", "training.batch_size=2", "training.batch_length=4", "workflow.horizon=2")


@pytest.mark.parametrize("observations", sorted(SPACES))
def test_an_update_and_its_parts_are_recorded(observations: str) -> None:
    config = composed_run(["experiment=dreamer_atari100k", "runtime=gpu", *SMALL])
    speed = update_speed(config, Conditions(size="debug", observations=observations, calls=2, has_parts=True))
    assert speed.is_captured
    assert speed.is_compiled
    assert speed.precision == "bfloat16"
    assert speed.seconds_to_captured is not None
    assert speed.seconds_to_captured > speed.seconds_to_first_update
    assert speed.ms_per_part is not None
    assert sum(speed.ms_per_part.values()) == pytest.approx(speed.ms_per_update)
