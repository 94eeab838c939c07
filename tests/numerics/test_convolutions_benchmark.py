"""What the benchmark of convolutions measures is one function in both forms."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
import torch
from reference import assert_near
from torch.nn import functional as F

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


def test_weights_are_measured_on_the_layers_of_an_encoder(monkeypatch: pytest.MonkeyPatch, repo_root: Path) -> None:
    monkeypatch.syspath_prepend(str(repo_root / "benchmarks"))
    benchmark = importlib.import_module("convolutions")
    layers = benchmark.encoder_layers(64, 1024)
    assert [(one.height, one.inputs, one.outputs) for one in layers] == [(32, 128, 192), (16, 192, 256), (8, 256, 256)]
    x, slope = (one.float() for one in benchmark.encoder_layers(2, 3)[-1].made_up(torch.device("cpu")))
    weight = torch.randn(8, 8, 5, 5, requires_grad=True)
    value = F.conv2d(x.permute(0, 3, 1, 2), weight, padding=2)
    (expected,) = torch.autograd.grad(value, weight, slope.permute(0, 3, 1, 2))
    assert_near(benchmark.weight_gradient_by_cudnn(x, slope), expected)
