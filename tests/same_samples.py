"""Two ways of computing one update under the same samples, so that rounding is all that can tell them apart."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch import Tensor

from reverie.components.networks.distributions import OneHot
from reverie.components.networks.heads import TwoHotHead
from reverie.rehearsal import Rehearsal
from reverie.types import Batch
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_optimizers import trainable_parameters
from reverie.workflows.dreamer_records import Learned


def learned(run: Rehearsal, batch: Batch) -> tuple[Learned, dict[str, list[Tensor]]]:
    """Losses of ``batch`` and all gradients, by network. Nothing moves but the return scale."""
    workflow = run.workflow
    assert isinstance(workflow, Dreamer)
    carry = workflow._rssm.restored({key: value[:, 0] for key, value in batch.stored.items()})
    found = workflow.learned(carry, batch)
    [gradients] = workflow._optimizers.gradients(found.losses).by_optimizer.values()
    networks: dict[str, list[Tensor]] = {}
    for name, gradient in zip(trainable_parameters(workflow.modules()), gradients, strict=True):
        networks.setdefault(name.partition(".")[0], []).append(gradient)
    return found, networks


def classes_of(found: Learned) -> list[Tensor]:
    """Every class that was drawn, in the order of an update: along replay, then in turn action and latent."""
    replayed = found.modelled.latents.stoch.detach().argmax(-1)
    variables, classes = found.modelled.latents.stoch.shape[-2:]
    dreamed = found.dreamed.feature[..., -variables * classes :].unflatten(-1, (variables, classes)).argmax(-1)
    actions = found.dreamed.action.detach()
    drawn = list(replayed.unbind(1))
    for step in range(actions.shape[1]):
        drawn += [] if actions.is_floating_point() else [actions[:, step]]
        drawn += [dreamed[:, step + 1]] if step + 1 < actions.shape[1] else []
    return drawn


def seasoned(run: Rehearsal) -> Rehearsal:
    """With heads as after some learning. Fresh ones say zero wherever they look: then no action is better than another,
    and an actor learns from its entropy alone.
    """
    workflow = run.workflow
    assert isinstance(workflow, Dreamer)
    heads = (workflow._reward_head, workflow._critic.online, workflow._critic.slow)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for head in heads:
            assert isinstance(head, TwoHotHead)
            bins, units = head.output.weight.shape
            noise = torch.randn(bins, units, generator=rng) / units**0.5
            bell = ((torch.arange(bins) - bins // 2) / (bins / 40)).square()  # else the far bins outweigh all others
            head.output.weight += noise.to(head.output.weight)
            head.output.bias -= bell.to(head.output.bias)
    return run


@contextmanager
def given_classes(drawn: list[Tensor]) -> Iterator[None]:
    """Inside, eager code takes ``drawn`` instead of drawing. All must be taken, and each must have the right shape."""
    left = list(drawn)

    def chosen(one: OneHot, _point: Tensor | None) -> Tensor:
        taken = left.pop(0)
        assert taken.shape == one.logits.shape[:-1]
        return taken

    with patch.object(OneHot, "chosen", chosen):
        yield
    assert not left, f"{len(left)} draws were not made"


def distance(one: Tensor, other: Tensor) -> float:
    """Relative, over all numbers together."""
    one, other = one.detach().double(), other.detach().double()
    return float((one - other).norm() / other.norm().clamp(min=1e-12))


def cosine(one: Tensor, other: Tensor) -> float:
    """By hand: torch's own takes small vectors for longer than they are."""
    one, other = one.flatten().double(), other.flatten().double()
    return float(one @ other / (one.norm() * other.norm()))


def flat(gradients: list[Tensor]) -> Tensor:
    return torch.cat([one.flatten() for one in gradients])
