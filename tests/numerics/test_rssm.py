"""The recurrent state-space model against the published code, under the same weights."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from reference import GRADIENT, arrays, assert_near, gradients, load_parameters
from torch import Tensor
from torch.nn import functional as F

from reverie.components.representation_learners.rssm import Latent, Rssm

FILES = ["rssm", "rssm_continuous"]
BLOCKS = {"rssm": 8, "rssm_continuous": 4}

LAYERS = {
    "dynin0": "read_deter.linears.0",
    "dynin1": "read_stoch.linears.0",
    "dynin2": "read_action.linears.0",
    "prior0": "prior_mlp.linears.0",
    "prior1": "prior_mlp.linears.1",
    "priorlogit": "prior_output",
    "obs0": "posterior_mlp.linears.0",
    "obslogit": "posterior_output",
}
"""Layers whose kernels are (in, out) in the reference and (out, in) here."""

BLOCK_LAYERS = {"dynhid0": "dynamics.0", "dyngru": "gates"}

NORMS = {
    "dynin0norm": "read_deter.norms.0",
    "dynin1norm": "read_stoch.norms.0",
    "dynin2norm": "read_action.norms.0",
    "dynhid0norm": "dynamics_norms.0",
    "prior0norm": "prior_mlp.norms.0",
    "prior1norm": "prior_mlp.norms.1",
    "obs0norm": "posterior_mlp.norms.0",
}


def under_our_names(file: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The reference's parameters, or gradients, by the names and in the layout of ``Rssm``."""
    renamed: dict[str, Tensor] = {}
    for theirs, ours in LAYERS.items():
        renamed[f"{ours}.weight"] = file[f"{prefix}/dyn/{theirs}/kernel"].T
        renamed[f"{ours}.bias"] = file[f"{prefix}/dyn/{theirs}/bias"]
    for theirs, ours in BLOCK_LAYERS.items():
        renamed[f"{ours}.weight"] = file[f"{prefix}/dyn/{theirs}/kernel"]
        renamed[f"{ours}.bias"] = file[f"{prefix}/dyn/{theirs}/bias"]
    for theirs, ours in NORMS.items():
        renamed[f"{ours}.scale"] = file[f"{prefix}/dyn/{theirs}/scale"]
    return renamed


def model(name: str) -> Rssm:
    file = arrays(name)
    stoch, classes = file["carry/stoch"].shape[1:]
    rssm = Rssm(
        token_dim=file["tokens"].shape[-1],
        action_dim=file["core/action"].shape[-1],
        deter=file["carry/deter"].shape[-1],
        hidden=file["param/dyn/dynin0/bias"].shape[0],
        stoch=stoch,
        classes=classes,
        blocks=BLOCKS[name],
    )
    load_parameters(rssm, under_our_names(file, "param"))
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
    expected = under_our_names(file, f"grad_{loss}")
    ours = gradients(mean, rssm)
    assert ours.keys() == expected.keys()
    for key, grad in ours.items():
        assert_near(grad, expected[key], GRADIENT, what=key)


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
