"""The walk by hand computes what ``Rssm`` computes: values, and the gradient of every input and weight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from reverie.components.representation_learners import rssm as walking
from reverie.components.representation_learners.latents import CategoricalLatents, Latent, LatentKind
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.representation_learners.rssm_by_hand import PlainSteps
from reverie.interop.dreamer_v3_norms import NormForm, formed

Way = Callable[[Rssm], Callable[..., tuple[Latent, Tensor]]]

SIZE, LENGTH, TOKENS, ACTIONS, DETER, STOCH = 3, 5, 6, 2, 8, 3


def model(latents: LatentKind) -> Rssm:
    torch.manual_seed(0)
    return Rssm(token_dim=TOKENS, action_dim=ACTIONS, deter=DETER, hidden=4, latents=latents, blocks=2)


def outcome(rssm: Rssm, *, way: Way, has_noise: bool) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(1)
    width = rssm._latents.width

    def drawn(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng).requires_grad_()

    deter, stoch = drawn(SIZE, DETER), drawn(SIZE, STOCH, width)
    tokens, action = drawn(SIZE, LENGTH, TOKENS), drawn(SIZE, LENGTH, ACTIONS)
    is_first = torch.zeros(SIZE, LENGTH, dtype=torch.bool)
    is_first[0, 0], is_first[1, 2] = True, True
    noise = torch.Generator().manual_seed(2) if has_noise else None
    latents, posterior = way(rssm)(Latent(deter=deter, stoch=stoch), tokens, action, is_first, noise)
    values = {"deter": latents.deter, "stoch": latents.stoch, "posterior": posterior}
    total = sum((value * drawn(*value.shape).detach()).sum() for value in values.values())
    assert isinstance(total, Tensor)
    inputs = {"carry deter": deter, "carry stoch": stoch, "tokens": tokens, "action": action}
    inputs |= {name: value for name, value in rssm.named_parameters() if not name.startswith("prior")}
    gradients = torch.autograd.grad(total, list(inputs.values()))
    return values | {f"gradient of {name}": value for name, value in zip(inputs, gradients, strict=True)}


@pytest.mark.parametrize("has_noise", [True, False])
def test_values_and_gradients_are_those_of_the_plain_walk(has_noise: bool) -> None:
    rssm = model(CategoricalLatents(stoch=STOCH, classes=4))
    plain = outcome(rssm, way=lambda one: one.observe, has_noise=has_noise)
    walked = outcome(rssm, way=lambda one: partial(one.walk, steps=PlainSteps()), has_noise=has_noise)
    for name, value in plain.items():
        assert value.abs().max() > 0, name
        torch.testing.assert_close(walked[name], value, rtol=1e-4, atol=2e-6, msg=name)


@pytest.mark.parametrize("form", [NormForm(), NormForm(activation="tanh"), NormForm(epsilon=0.1)])
def test_norms_of_another_form_are_walked_as_they_are_written(form: NormForm, monkeypatch: pytest.MonkeyPatch) -> None:
    rssm = formed(model(CategoricalLatents(stoch=STOCH, classes=4)), form)
    plain = outcome(rssm, way=lambda one: one.observe, has_noise=True)
    walks: list[Rssm] = []
    right = Rssm.walk

    def counted(self: Rssm, *given: Any, **named: Any) -> tuple[Latent, Tensor]:
        walks.append(self)
        return right(self, *given, **named)

    monkeypatch.setattr(Rssm, "walk", counted)
    monkeypatch.setattr(walking, "steps_are_compiled", lambda: True)
    monkeypatch.setattr(walking, "chosen_steps", PlainSteps)
    found = outcome(rssm, way=lambda one: one.observe, has_noise=True)
    assert len(walks) == (form == NormForm())
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=2e-6, msg=name)
