"""DreamerV3 learns: far better than chance on a reduced budget. Nothing is timed."""

from __future__ import annotations

from pathlib import Path

import pytest
from killer import Killer
from same_run import metric_lines

STEPS = 6000


def final_return(run: Path) -> float:
    return [line["eval/return_mean"] for line in metric_lines(run) if "eval/return_mean" in line][-1]


@pytest.mark.long
def test_dreamer_beats_random_actions_by_far(killer: Killer, tmp_path: Path) -> None:
    dreamer, chance = tmp_path / "dreamer", tmp_path / "chance"
    for experiment, run in (("dreamer_cartpole", dreamer), ("random_cartpole", chance)):
        ended = killer.run("train", f"experiment={experiment}", f"training.total_timesteps={STEPS}", f"logdir={run}")
        assert ended.code == 0, ended.output
    assert 10 < final_return(chance) < 40
    assert final_return(dreamer) >= 100
