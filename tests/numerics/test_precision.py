"""bfloat16 inside the networks: near the float32 numbers, gradients everywhere, and all that is kept stays float32."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_dreamer import CPU, phase, small_dreamer, synthetic_batch

from reverie.components.networks.layers import Mlp
from reverie.components.networks.lowered import LoweredCopy
from reverie.runtime.precision import Precision
from reverie.types import ReverieError
from reverie.workflows.base import WorldModelWorkflow

LOWERED = "runtime.precision=bfloat16"


def test_losses_are_close_and_differ() -> None:
    full, lowered = (
        small_dreamer(*given).update(synthetic_batch(), phase=phase()).metrics for given in ((), (LOWERED,))
    )
    names = [name for name in full if name.startswith("loss/")]
    assert any(full[name] != lowered[name] for name in names)
    for name in names:
        assert lowered[name].item() == pytest.approx(full[name].item(), rel=0.05, abs=0.02), name


def test_every_weight_learns_in_bfloat16() -> None:
    """A weight first used without gradients must not stay without them: its converted copy is remembered."""
    dreamer = small_dreamer(LOWERED, "optimizers.model.warmup_updates=0", "workflow.free_nats=0")
    for _ in range(2):  # the first update moves the zero output layers, and only then do gradients pass them
        before = {name: value.detach().clone() for name, value in parameters(dreamer).items()}
        dreamer.update(synthetic_batch(), phase=phase())
    after = parameters(dreamer)
    assert [name for name in after if not name.startswith("critic.slow") and after[name].equal(before[name])] == []


def test_weights_moments_and_metrics_stay_float32() -> None:
    dreamer = small_dreamer(LOWERED)
    result = dreamer.update(synthetic_batch(), phase=phase())
    assert {value.dtype for value in parameters(dreamer).values()} == {torch.float32}
    assert {value.dtype for value in result.metrics.values()} == {torch.float32}


def parameters(dreamer: WorldModelWorkflow) -> dict[str, torch.Tensor]:
    modules = dreamer.modules()
    return {f"{name}.{key}": value for name, module in modules.items() for key, value in module.named_parameters()}


def test_a_lowered_copy_computes_what_autocast_computes_and_follows_its_original() -> None:
    network = Mlp(5, layers=2, units=4)
    copied, features = LoweredCopy(network), torch.randn(3, 5, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5).add_(0.25)
        copied.refresh()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert copied.network(features).equal(network(features))
    assert {value.dtype for value in copied.network.linears.parameters()} == {torch.bfloat16}
    norms = zip(copied.network.norms.parameters(), network.norms.parameters(), strict=True)
    assert all(one is other for one, other in norms)


def test_dreams_follow_the_weights_of_the_last_update() -> None:
    dreamer = small_dreamer(LOWERED, "optimizers.model.warmup_updates=0", "optimizers.model.learning_rate=0.1")
    dreamer.update(synthetic_batch(), phase=phase())
    assert not all(
        is_current(copied) for copied in dreamer._imagination.copies
    )  # the optimiser has moved on since its dreams
    starts = dreamer._rssm.initial(2, CPU)
    with dreamer._context.precision.applied():
        dreamer.imagine(horizon=1, starts=starts)
    assert all(is_current(copied) for copied in dreamer._imagination.copies)


def is_current(copied: LoweredCopy[Any]) -> bool:
    pairs = zip(copied._lowered, copied._originals, strict=True)
    return all(lowered.equal(original.to(torch.bfloat16)) for lowered, original in pairs)


def test_auto_follows_the_device() -> None:
    assert not Precision("auto", CPU).is_lowered
    assert Precision("auto", torch.device("cuda")).is_lowered
    with pytest.raises(ReverieError, match=r"runtime\.precision"):
        Precision("float16", CPU)
