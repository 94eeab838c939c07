"""Gradients of DreamerV3's walk that were written by hand are those that autograd finds, to the last digits."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from plain_walk import Walk, made_up, outcome
from torch import Tensor

from reverie.components.representation_learners import rssm_by_hand
from reverie.components.representation_learners.latents import CategoricalLatents, Latent
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.representation_learners.rssm_by_hand import PlainSteps, chosen_steps, gates_gradient
from reverie.runtime.compilation import use_walk
from reverie.runtime.device import RuntimeConfig
from reverie.types import ReverieError

WALKS = {
    "two blocks": Walk(),
    "one block": Walk(blocks=1, deter=7, hidden=3),
    "many blocks": Walk(blocks=4, deter=24, length=6, size=5, stoch=6, classes=3),
    "one step": Walk(length=1),
    "one row": Walk(size=1, length=7),
    "most likely classes": Walk(has_noise=False),
    "nothing mixed in": Walk(unimix=0.0),
    "one class": Walk(classes=1),
}


def distance(walk: Walk) -> dict[str, float]:
    """From autograd's, as a share of the largest number in each tensor."""
    inputs, weights = made_up(walk)
    plain, ours = (outcome(walk, inputs, weights, steps) for steps in (None, PlainSteps()))
    assert plain.keys() == ours.keys()
    sizes = {name: value.abs().max().clamp(min=1e-12) for name, value in plain.items()}
    return {name: float((ours[name] - value).abs().max() / sizes[name]) for name, value in plain.items()}


@pytest.mark.parametrize("name", WALKS)
def test_values_and_gradients_are_those_of_autograd(name: str) -> None:
    assert {key: value for key, value in distance(WALKS[name]).items() if not value < 1e-10} == {}


def test_gradients_of_the_made_up_walk_reach_everything() -> None:
    walk = Walk()
    for name, value in outcome(walk, *made_up(walk), PlainSteps()).items():
        assert value.abs().max() > 1e-3, name


def test_what_an_episode_begins_with_is_independent_of_what_was_before() -> None:
    walk = Walk(length=2, size=2)
    inputs, weights = made_up(walk)
    inputs = inputs._replace(keep=torch.tensor([[[1.0], [0.0]], [[1.0], [1.0]]], dtype=torch.float64))
    gradient = outcome(walk, inputs, weights, PlainSteps())["inputs.deter"]
    assert (gradient[1] == 0).all()
    assert (gradient[0] != 0).all()


def test_gates_that_are_split_across_blocks_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mistake that other codes make: three parts of the whole vector instead of three in each block."""

    def across(to_new: Tensor, old: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        flat = gates.flatten(-2).unflatten(-1, (3, *old.shape[-2:])).transpose(-3, -2).flatten(-2)
        return gates_gradient(to_new, old, flat)

    assert max(distance(Walk(blocks=1)).values()) < 1e-10
    monkeypatch.setattr(rssm_by_hand, "gates_gradient", across)
    assert max(distance(Walk(blocks=1)).values()) < 1e-10
    assert max(distance(Walk(blocks=2)).values()) > 1e-2


def test_under_autocast_it_rounds_nearly_where_the_plain_walk_does() -> None:
    """In one step: later ones begin with samples, and a few of many would fall on other sides of their borders."""
    torch.manual_seed(0)
    latents = CategoricalLatents(stoch=8, classes=4)
    rssm = Rssm(token_dim=6, action_dim=2, deter=64, hidden=16, latents=latents, blocks=4)
    carry = Latent(deter=torch.randn(8, 64), stoch=torch.randn(8, 8, 4).softmax(-1))
    tokens, action = torch.randn(8, 1, 6, requires_grad=True), torch.randn(8, 1, 2)
    is_first = torch.rand(8, 1) < 0.2
    found = []
    for steps in (None, PlainSteps()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            way = rssm.observe if steps is None else partial(rssm.walk, steps=steps)
            latent, posterior = way(carry, tokens, action, is_first, torch.Generator().manual_seed(0))
        total = latent.deter.square().sum() + latent.stoch[..., 0].sum() + posterior.float().square().sum()
        parameters = [value for name, value in rssm.named_parameters() if not name.startswith("prior")]
        found.append([latent.deter, latent.stoch, posterior, *torch.autograd.grad(total, [tokens, *parameters])])
    for one, other in zip(*found, strict=True):
        assert one.dtype == other.dtype
        assert torch.cosine_similarity(one.double().flatten(), other.double().flatten(), dim=0) > 0.999
    assert torch.equal(found[0][1], found[1][1])


def test_the_setting_chooses_the_steps() -> None:
    try:
        use_walk("by_hand")
        assert isinstance(chosen_steps(), PlainSteps)
        use_walk("autograd")
        assert chosen_steps() is None
    finally:
        use_walk("autograd")
    with pytest.raises(ReverieError, match=r"runtime.walk must be one of autograd, by_hand, fused, got 'run'"):
        RuntimeConfig(walk="run")
