"""The recurrent state-space model against the published code, under the same weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from reference import GRADIENT, arrays, assert_gradients, assert_near, parameters
from torch import Tensor
from torch.nn import functional as F

from reverie.components.representation_learners.latents import CategoricalLatents, Latent
from reverie.components.representation_learners.rssm import Rssm
from reverie.interop.dreamer_v3_names import rssm_links
from reverie.interop.links import load

FILES = ["rssm", "rssm_continuous"]
BLOCKS = {"rssm": 8, "rssm_continuous": 4}


def model(name: str) -> Rssm:
    file = arrays(name)
    stoch, classes = file["carry/stoch"].shape[1:]
    rssm = Rssm(
        token_dim=file["tokens"].shape[-1],
        action_dim=file["core/action"].shape[-1],
        deter=file["carry/deter"].shape[-1],
        hidden=file["param/dyn/dynin0/bias"].shape[0],
        latents=CategoricalLatents(stoch=stoch, classes=classes),
        blocks=BLOCKS[name],
    )
    load(rssm_links(rssm), parameters(name))
    return rssm


def latent(file: dict[str, Tensor], name: str) -> Latent:
    return Latent(deter=file[f"{name}/deter"], stoch=file[f"{name}/stoch"])


def action_vector(action: Tensor, dim: int) -> Tensor:
    return action if action.is_floating_point() else F.one_hot(action.long(), dim).float()


def observed(rssm: Rssm, name: str, tokens: Tensor | None = None) -> tuple[Latent, Tensor]:
    file = arrays(name)
    action = action_vector(file["action"], file["core/action"].shape[-1])
    return rssm.observe(
        latent(file, "carry"), file["tokens"] if tokens is None else tokens, action, file["reset"], None
    )


@pytest.mark.parametrize("name", FILES)
def test_one_step_without_an_observation(name: str) -> None:
    file, rssm = arrays(name), model(name)
    assert_near(rssm.imagine(latent(file, "carry"), file["core/action"], None).deter, file["core/deter"])
    assert_near(rssm.prior(file["carry/deter"]), file["core/prior_logit"])


@pytest.mark.parametrize("name", FILES)
def test_observe(name: str) -> None:
    file, rssm = arrays(name), model(name)
    latents, posterior = observed(rssm, name)
    assert_near(latents.deter, file["observe/deter"])
    assert_near(posterior, file["observe/logit"])
    assert torch.equal(latents.stoch.detach(), file["observe/stoch"])
    assert_near(rssm.prior(latents.deter), file["observe/prior_logit"])
    assert torch.equal(latents.stoch[:, -1].detach(), file["observe_carry/stoch"])
    assert_near(rssm.distribution(posterior).entropy().sum(-1).mean(), file["metric/rep_ent"])


@pytest.mark.parametrize("name", FILES)
def test_imagine(name: str) -> None:
    file, rssm = arrays(name), model(name)
    state = latent(file, "observe_carry")
    actions = action_vector(file["imagine/action"], file["core/action"].shape[-1])
    for step, action in enumerate(actions.unbind(1)):
        state = rssm.imagine(state, action, None)
        assert_near(state.deter, file["imagine/deter"][:, step])
        assert_near(rssm.prior(state.deter), file["imagine/logit"][:, step])
        assert torch.equal(state.stoch.detach(), file["imagine/stoch"][:, step])


@pytest.mark.parametrize("name", FILES)
def test_kl(name: str) -> None:
    file, rssm = arrays(name), model(name)
    latents, posterior = observed(rssm, name)
    dynamics, representation = rssm.kl(posterior, rssm.prior(latents.deter))
    for kl, loss in ((dynamics, "dyn"), (representation, "rep")):
        assert_near(kl, file["observe/kl_unclipped"])
        assert_near(kl.clamp(min=1.0), file[f"loss/{loss}"])


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("loss", ["dyn", "rep"])
def test_gradients_of_the_kl(name: str, loss: str) -> None:
    file, rssm = arrays(name), model(name)
    tokens = file["tokens"].clone().requires_grad_()
    latents, posterior = observed(rssm, name, tokens)
    kls = dict(zip(("dyn", "rep"), rssm.kl(posterior, rssm.prior(latents.deter)), strict=True))
    mean = kls[loss].clamp(min=1.0).mean()
    (grad_tokens,) = torch.autograd.grad(mean, tokens, retain_graph=True)
    assert_near(grad_tokens, file[f"grad_{loss}_tokens"], GRADIENT)
    assert_gradients(mean, rssm_links(rssm), name, f"grad_{loss}")


WRONG: dict[str, Callable[[Latent, Tensor], tuple[Latent, Tensor]]] = {
    "no reset": lambda state, is_first: (state, torch.zeros_like(is_first)),
    "no carry": lambda state, is_first: (
        Latent(deter=torch.zeros_like(state.deter), stoch=torch.zeros_like(state.stoch)),
        is_first,
    ),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_the_fixture_tells_a_forgotten_reset_and_a_forgotten_carry(mistake: str) -> None:
    file, rssm = arrays("rssm"), model("rssm")
    carry, is_first = WRONG[mistake](latent(file, "carry"), file["reset"])
    latents, _ = rssm.observe(carry, file["tokens"], action_vector(file["action"], 5), is_first, None)
    assert not torch.allclose(latents.deter, file["observe/deter"], atol=1e-3)


def test_sampling_uses_the_stream_and_gives_one_hots() -> None:
    file, rssm = arrays("rssm"), model("rssm")
    arguments = (latent(file, "carry"), file["tokens"], action_vector(file["action"], 5), file["reset"])
    one, _ = rssm.observe(*arguments, torch.Generator().manual_seed(0))
    same, _ = rssm.observe(*arguments, torch.Generator().manual_seed(0))
    other, _ = rssm.observe(*arguments, torch.Generator().manual_seed(1))
    assert torch.equal(one.stoch, same.stoch)
    assert not torch.equal(one.stoch, other.stoch)
    assert torch.equal(one.stoch.sum(-1), torch.ones_like(one.stoch[..., 0]))
