"""The recurrent cells and the state-space model around them, against formulas written out here."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.representation_learners.cells import NormGru, PlainGru
from reverie.components.representation_learners.gru_rssm import GruRssm
from reverie.components.representation_learners.latents import CategoricalLatents, GaussianLatents, Latent, LatentKind
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.representation_learners.state_space_model import StateSpaceModel

INPUT, DETER, HIDDEN, TOKENS, ACTIONS, STOCH, CLASSES = 5, 6, 7, 4, 3, 2, 4
BATCH, TIME = 3, 4
CPU = torch.device("cpu")
CATEGORICAL, GAUSSIAN = CategoricalLatents(stoch=STOCH, classes=CLASSES), GaussianLatents(stoch=STOCH)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def shaken(module: nn.Module) -> None:
    """Moves every weight, so that no bias, scale or shift is at the value that hides it."""
    with torch.no_grad():
        for index, parameter in enumerate(module.parameters()):
            parameter += 0.5 * noise(*parameter.shape, seed=index)


def forms() -> dict[str, StateSpaceModel]:
    sizes = {"token_dim": TOKENS, "action_dim": ACTIONS, "deter": DETER, "hidden": HIDDEN}
    norm_gru = partial(NormGru, has_bias=True)
    made: dict[str, StateSpaceModel] = {
        "v1": GruRssm(**sizes, latents=GAUSSIAN, cell=PlainGru),
        "v2": GruRssm(**sizes, latents=CATEGORICAL, cell=norm_gru),
        "2023": GruRssm(
            **sizes, latents=CATEGORICAL, cell=NormGru, norm="layer", activation="silu", has_learned_start=True
        ),
        "gaussian blocks": Rssm(**sizes, latents=GAUSSIAN, blocks=2),
    }
    for model in made.values():
        shaken(model)
    return made


FORMS = list(forms())


def sequence(model: StateSpaceModel) -> tuple[Latent, Tensor, Tensor, Tensor]:
    """Carry, tokens, actions and flags; the second row begins an episode at step 2."""
    carry = model.initial(BATCH, CPU)
    stoch = model.restored({"deter": carry.deter, "stoch": torch.ones(BATCH, STOCH)}).stoch
    carry = Latent(deter=noise(BATCH, DETER).tanh(), stoch=stoch)
    is_first = torch.zeros(BATCH, TIME, dtype=torch.bool)
    is_first[1, 2] = True
    return carry, noise(BATCH, TIME, TOKENS, seed=1), 2 * noise(BATCH, TIME, ACTIONS, seed=2), is_first


# Cells


def test_the_plain_cell_is_torch_s_own() -> None:
    cell, theirs = PlainGru(input_dim=INPUT, deter=DETER), nn.GRUCell(INPUT, DETER)
    shaken(cell)
    assert theirs.bias_ih is not None
    assert theirs.bias_hh is not None
    with torch.no_grad():
        for one, other in (
            (theirs.weight_ih, cell.from_input.weight),
            (theirs.bias_ih, cell.from_input.bias),
            (theirs.weight_hh, cell.from_state.weight),
            (theirs.bias_hh, cell.from_state.bias),
        ):
            one.copy_(other)
    x, old = noise(BATCH, INPUT), noise(BATCH, DETER, seed=1)
    torch.testing.assert_close(cell(x, old), theirs(x, old))


def test_the_plain_cell_resets_after_the_product_and_not_before() -> None:
    cell = PlainGru(input_dim=INPUT, deter=DETER)
    shaken(cell)
    x, old = noise(BATCH, INPUT), noise(BATCH, DETER, seed=1)
    reset, update, candidate = cell.from_input(x).chunk(3, -1)
    old_reset, old_update, _ = cell.from_state(old).chunk(3, -1)
    before = F.linear((reset + old_reset).sigmoid() * old, *(p.chunk(3)[2] for p in cell.from_state.parameters()))
    share = (update + old_update).sigmoid()
    assert not torch.allclose(cell(x, old), share * old + (1 - share) * torch.tanh(candidate + before), atol=1e-2)


def test_the_plain_cell_starts_with_orthogonal_recurrence() -> None:
    for gate in PlainGru(input_dim=INPUT, deter=DETER).from_state.weight.chunk(3):
        torch.testing.assert_close(gate @ gate.T, torch.eye(DETER))


@pytest.mark.parametrize("has_bias", [True, False])
def test_the_cell_with_a_layer_norm(has_bias: bool) -> None:
    cell = NormGru(input_dim=INPUT, deter=DETER, has_bias=has_bias)
    shaken(cell)
    assert (cell.joint.bias is not None) == has_bias
    x, old = noise(BATCH, INPUT), noise(BATCH, DETER, seed=1)
    joint = torch.cat([x, old], -1) @ cell.joint.weight.T + (cell.joint.bias if has_bias else 0)

    def step(epsilon: float = 1e-3, update_shift: float = -1.0) -> Tensor:
        centred = joint - joint.mean(-1, keepdim=True)
        normed = centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt()
        reset, candidate, update = (normed * cell.norm.weight + cell.norm.bias).chunk(3, -1)
        share = (update + update_shift).sigmoid()
        return share * torch.tanh(reset.sigmoid() * candidate) + (1 - share) * old

    torch.testing.assert_close(cell(x, old), step())
    assert not torch.allclose(cell(x, old), step(update_shift=0.0), atol=1e-2)
    assert not torch.allclose(cell(x, old), step(epsilon=0.1), atol=1e-3)


# The model around them


def test_a_step_of_dreamer_v2_written_out() -> None:
    model = forms()["v2"]
    assert isinstance(model, GruRssm)
    carry, tokens, action, is_first = sequence(model)
    latents, posterior = model.observe(carry, tokens, action, is_first, None)
    keep = (~is_first[:, 2:3]).float()
    bounded = action[:, 2] / action[:, 2].abs().clamp(min=1)
    stoch = latents.stoch_vector[:, 1] * keep
    (first,) = model.cell_input.linears
    hidden = F.elu(first(torch.cat([stoch, bounded * keep], -1)))
    deter = model.cell(hidden, latents.deter[:, 1] * keep)
    torch.testing.assert_close(latents.deter[:, 2], deter)
    (read,) = model.posterior_mlp.linears
    logits = model.posterior_output(F.elu(read(torch.cat([deter, tokens[:, 2]], -1)))).view(BATCH, STOCH, CLASSES)
    torch.testing.assert_close(posterior[:, 2], logits)
    (read,) = model.prior_mlp.linears
    torch.testing.assert_close(model.prior(deter), model.prior_output(F.elu(read(deter))).view(BATCH, STOCH, CLASSES))


@pytest.mark.parametrize("form", FORMS)
def test_an_episode_that_begins_forgets_what_was_before(form: str) -> None:
    model = forms()[form]
    carry, tokens, action, is_first = sequence(model)
    whole, _ = model.observe(carry, tokens, action, is_first, None)
    rest = (tokens[:, 2:], action[:, 2:] * (~is_first[:, 2:]).unsqueeze(-1), torch.zeros_like(is_first[:, 2:]))
    alone, _ = model.observe(model.initial(BATCH, CPU), *rest, None)
    torch.testing.assert_close(whole.feature[1, 2:], alone.feature[1])
    assert not torch.allclose(whole.feature[0, 2:], alone.feature[0], atol=1e-3)


@pytest.mark.parametrize("form", FORMS)
def test_imagining_is_observing_without_the_observation(form: str) -> None:
    model = forms()[form]
    carry, tokens, action, is_first = sequence(model)
    observed, _ = model.observe(carry, tokens, action, is_first, None)
    imagined = model.imagine(carry, action[:, 0], None)
    torch.testing.assert_close(imagined.deter, observed.deter[:, 0])
    kind: LatentKind = model._latents
    torch.testing.assert_close(imagined.stoch, kind.sample(model.prior(imagined.deter), None))


@pytest.mark.parametrize("form", FORMS)
def test_dreams_carry_gradients_to_actions_through_every_step(form: str) -> None:
    """Without noise in the samples of classes, whose gradients are straight through."""
    model = forms()[form]
    carry, _, action, _ = sequence(model)
    action = (action / 4).requires_grad_()
    latent = carry
    for step in range(3):
        latent = model.imagine(latent, action[:, step], torch.Generator().manual_seed(step))
    (by_deter,) = torch.autograd.grad(latent.deter.sum(), action, retain_graph=True)
    (by_stoch,) = torch.autograd.grad((latent.stoch * noise(*latent.stoch.shape)).sum(), action)
    for grad in (by_deter, by_stoch):
        assert (grad[:, :3].abs().amax((0, 2)) > 0).all()
        assert (grad[:, 3] == 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_each_half_of_the_kl_stops_where_it_must(form: str) -> None:
    model = forms()[form]
    carry, tokens, action, is_first = sequence(model)
    tokens.requires_grad_()
    latents, posterior = model.observe(carry, tokens, action, is_first, torch.Generator().manual_seed(0))
    dynamics, representation = model.kl(posterior, model.prior(latents.deter))
    assert dynamics.shape == (BATCH, TIME)
    torch.testing.assert_close(dynamics, representation)
    outputs = [model.get_parameter("prior_output.weight"), model.get_parameter("posterior_output.weight")]
    # A step's own posterior: earlier ones are reached through the recurrence, so only the first step tells.
    moves = []
    for half in (dynamics, representation):
        grads = torch.autograd.grad(half[:, 0].sum(), outputs, materialize_grads=True, retain_graph=True)
        moves.append([bool(grad.any()) for grad in grads])
    assert moves == [[True, False], [False, True]]


def test_a_learned_start_is_the_most_likely_latent_of_a_learned_deter() -> None:
    model = forms()["2023"]
    assert isinstance(model, GruRssm)
    assert model.start is not None
    initial = model.initial(BATCH, CPU)
    torch.testing.assert_close(initial.deter, torch.tanh(model.start).expand(BATCH, -1))
    chosen = model.prior(initial.deter).argmax(-1)
    assert torch.equal(initial.stoch, F.one_hot(chosen, CLASSES).float())
    carry, tokens, action, is_first = sequence(model)
    latents, _ = model.observe(carry, tokens, action, is_first, None)
    grads = [torch.autograd.grad(latents.deter[row, 2:].sum(), model.start, retain_graph=True)[0] for row in (0, 1)]
    assert not grads[0].any(), "an episode that goes on does not see the start"
    assert grads[1].any()


@pytest.mark.parametrize("form", ["v1", "v2", "gaussian blocks"])
def test_other_starts_are_zeros(form: str) -> None:
    initial = forms()[form].initial(BATCH, CPU)
    assert not initial.feature.any()
    assert not initial.feature.requires_grad


@pytest.mark.parametrize("form", FORMS)
def test_a_latent_comes_back_from_replay(form: str) -> None:
    model = forms()[form]
    latents, _ = model.observe(*sequence(model), torch.Generator().manual_seed(0))
    stored = model.stored(latents.detach())
    assert {key: value.shape[:2] for key, value in stored.items()} == {"deter": (BATCH, TIME), "stoch": (BATCH, TIME)}
    restored = model.restored(stored)
    torch.testing.assert_close(restored.feature, latents.feature.detach(), rtol=1 / 128, atol=0)
    assert all(torch.equal(value, stored[key]) for key, value in model.stored(restored).items())


@pytest.mark.parametrize("form", ["v1", "v2", "2023"])
def test_the_recurrent_state_stays_float32_under_bfloat16(form: str) -> None:
    model = forms()[form]
    with torch.autocast("cpu", torch.bfloat16):
        latents, posterior = model.observe(*sequence(model), torch.Generator().manual_seed(0))
        halves = model.kl(posterior, model.prior(latents.deter))
    assert {latents.deter.dtype, latents.stoch.dtype, *(half.dtype for half in halves)} == {torch.float32}
    sum(half.sum() for half in halves).backward()
