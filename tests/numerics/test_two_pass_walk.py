"""The walk in two passes: the values of ``observe``, and the gradient of every input and weight."""

from __future__ import annotations

import pytest
import torch
from test_gru_rssm import ACTIONS, CATEGORICAL, DETER, FORMS, GAUSSIAN, HIDDEN, TOKENS, forms, sequence, shaken
from torch import Generator, Tensor

from reverie.components.representation_learners import two_pass_walk
from reverie.components.representation_learners.cells import NormGru
from reverie.components.representation_learners.gru_rssm import GruRssm
from reverie.components.representation_learners.latents import Latent
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.representation_learners.state_space_model import StateSpaceModel
from reverie.components.representation_learners.two_pass_walk import TwoPassWalk
from reverie.runtime.precision import FULL_PRECISION, Precision

CPU = torch.device("cpu")


def made(form: str) -> StateSpaceModel:
    torch.manual_seed(0)
    return forms()[form]


def outcome(
    model: StateSpaceModel,
    *,
    is_walked: bool,
    precision: str = "float32",
    seed: int | None = 2,
    allows_unused: bool = False,
) -> list[Tensor]:
    """Values, and the gradients of carry, tokens, actions and weights."""
    lowered = Precision(precision, CPU)
    walk = TwoPassWalk(model, precision=lowered)
    carry, tokens, action, is_first = sequence(model)
    leaves = [one.clone().requires_grad_() for one in (carry.deter, carry.stoch, tokens, action)]
    leaves += [value for name, value in model.named_parameters() if not name.startswith("prior")]
    rng = None if seed is None else torch.Generator().manual_seed(seed)
    with lowered.applied():
        way = walk.walk if is_walked else model.observe
        latent, posterior = way(Latent(deter=leaves[0], stoch=leaves[1]), leaves[2], leaves[3], is_first, rng)
    values = [latent.deter, latent.stoch, posterior.float()]
    weights = torch.Generator().manual_seed(3)
    total = sum((one * torch.randn(one.shape, generator=weights)).sum() for one in values)
    assert isinstance(total, Tensor)
    return [one.detach() for one in (*values, *torch.autograd.grad(total, leaves, materialize_grads=allows_unused))]


def distance(ones: list[Tensor], others: list[Tensor]) -> float:
    """The largest, as a share of the largest number of each tensor."""
    pairs = zip(ones, others, strict=True)
    return max(float((one - other).abs().max() / other.abs().max().clamp(min=1e-6)) for one, other in pairs)


@pytest.mark.parametrize("seed", [None, 2])
@pytest.mark.parametrize("form", FORMS)
def test_values_and_gradients_are_those_of_steps_that_hang_together(form: str, seed: int | None) -> None:
    plain = outcome(made(form), is_walked=False, seed=seed)
    assert all(one.abs().max() > 1e-3 for one in plain)
    assert distance(outcome(made(form), is_walked=True, seed=seed), plain) < 2e-5


@pytest.mark.parametrize("form", FORMS)
def test_weights_that_are_converted_once_give_the_same_direction(form: str) -> None:
    plain, walked = (outcome(made(form), is_walked=one, precision="bfloat16") for one in (False, True))
    assert torch.equal(plain[1] > 0.5, walked[1] > 0.5)
    for one, other in zip(walked, plain, strict=True):
        assert torch.cosine_similarity(one.flatten().double(), other.flatten().double(), dim=0) > 0.99


def test_steps_that_forget_what_came_later_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = outcome(made("2023"), is_walked=False)
    monkeypatch.setattr(two_pass_walk, "_along", lambda _steps, *to_values: to_values)
    assert distance(outcome(made("2023"), is_walked=True), plain) > 0.1


def test_weights_learn_again_after_a_walk() -> None:
    model = made("2023")
    outcome(model, is_walked=True)
    assert all(parameter.requires_grad for parameter in model.parameters())


class Blind(GruRssm):
    """Its posterior knows nothing but the tokens, and its state nothing of what came before."""

    def _posterior(self, deter: Tensor, tokens: Tensor) -> Tensor:
        return super()._posterior(torch.zeros_like(deter), tokens)

    def _core(self, latent: Latent, action_input: Tensor) -> Tensor:
        return super()._core(Latent(deter=torch.zeros_like(latent.deter), stoch=latent.stoch), action_input)


class Doubling(GruRssm):
    """More than its steps."""

    def observe(
        self, carry: Latent, tokens_BTD: Tensor, action_BTA: Tensor, is_first_BT: Tensor, rng: Generator | None
    ) -> tuple[Latent, Tensor]:
        latent, posterior = super().observe(carry, tokens_BTD, action_BTA, is_first_BT, rng)
        return Latent(deter=2 * latent.deter, stoch=latent.stoch), posterior


def own(kind: type[GruRssm]) -> GruRssm:
    torch.manual_seed(0)
    sizes = {"token_dim": TOKENS, "action_dim": ACTIONS, "deter": DETER, "hidden": HIDDEN}
    model = kind(**sizes, latents=CATEGORICAL, cell=NormGru)
    shaken(model)
    return model


def test_a_model_of_one_s_own_may_look_at_less() -> None:
    leaves = 4  # the carry's deter is among them and reaches nothing, so weights alone are compared
    plain, walked = (outcome(own(Blind), is_walked=one, allows_unused=True) for one in (False, True))
    assert distance(walked[3 + leaves :], plain[3 + leaves :]) < 2e-5


def test_only_models_that_are_nothing_but_their_steps_are_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_pass_walk, "defers_gradients", lambda: True)
    kinds = {kind: own(kind) for kind in (GruRssm, Blind, Doubling)}
    sizes = {"token_dim": TOKENS, "action_dim": ACTIONS, "deter": DETER, "hidden": HIDDEN}
    models: list[StateSpaceModel] = [*kinds.values(), Rssm(**sizes, latents=GAUSSIAN, blocks=2)]
    models.append(Rssm(**sizes, latents=CATEGORICAL, blocks=2))
    walks: list[bool] = []
    for model in models:
        walk = TwoPassWalk(model, precision=FULL_PRECISION)
        walks.append(False)
        monkeypatch.setattr(walk, "walk", lambda *_: walks.__setitem__(-1, True))
        walk.observe(*sequence(model), None)
    assert walks == [True, True, False, True, False]
