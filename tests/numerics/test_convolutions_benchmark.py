"""What the benchmark of convolutions measures is one function in both forms."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from reference import assert_near

from reverie.runtime.convolutions import use_rewritten_convolutions


def test_the_benchmark_computes_the_same_in_both_forms(
    monkeypatch: pytest.MonkeyPatch, repo_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    benchmark = importlib.import_module("convolutions")
    size, runtime = benchmark.size_of("debug")
    assert runtime.precision == "bfloat16"
    for part in benchmark.PARTS.values():
        found = []
        for is_on in (False, True):
            use_rewritten_convolutions(is_on=is_on)
            loss, gradients = part(size, pictures=2, device=torch.device("cpu"), precision="float32").gradients()
            found.append([loss, *gradients])
        use_rewritten_convolutions(is_on=False)
        for one, other in zip(*found, strict=True):
            assert_near(one, other)
    monkeypatch.setattr("sys.argv", ["convolutions.py"])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert benchmark.main() == 2
    assert "CUDA" in capsys.readouterr().err
