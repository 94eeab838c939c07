"""What was compiled for one agent is taken again, unasked, for another whose parameters have the same shapes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from reverie.benchmark import Conditions, update_speed
from reverie.commands.composition import composed_run

FEWER = ("training.batch_size=4", "training.batch_length=8", "workflow.horizon=3")


@pytest.mark.long
def test_pictures_run_on_what_was_compiled_for_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have the same critic. Without gaps between parameters it was aligned behind 24 outputs for numbers, but not
    behind those for three colours: kernels that read 16 bytes at once would end with a misaligned address.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # nothing has been compiled before
    torch.compiler.reset()
    for observations in ("vector", "image"):
        config = composed_run(["experiment=dreamer_dmc_vision", "runtime=gpu", "size=12m", *FEWER])
        speed = update_speed(config, Conditions(size="12m", observations=observations, calls=2, has_parts=False))
        torch.cuda.synchronize()
        assert speed.is_compiled
