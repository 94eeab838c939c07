"""The world models of the older forms of Dreamer, as their YAML composes them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_dreamer import CPU, SPACES, composed, synthetic_batch
from torch import Tensor, nn

from reverie.build import _space_node
from reverie.configuration import instantiate
from reverie.types import Space, Spaces

FORMS = ["dreamer_v1", "dreamer_v2", "dreamer_v3_2023"]
PARTS = ("encoder", "representation_learner", "decoder", "reward_head", "continue_head")
MIXED = Spaces(
    obs={"image": Space(shape=(64, 64, 1), dtype="uint8"), **SPACES.obs}, action=Space(shape=(2,), dtype="float32")
)
EIGHTEEN = Space(shape=(), dtype="int64", classes=18)


def world_model(form: str, spaces: Spaces, size: str = "debug") -> dict[str, Any]:
    """The parts of the world model alone, made as a run makes them."""
    config = composed(f"components={form}", f"size={size}")
    obs = {key: _space_node(space) for key, space in spaces.obs.items()}
    config["_dims"] = {"obs": obs, "action_dim": spaces.action.dim}
    parts: dict[str, Any] = {}
    for name in PARTS:
        parts[name] = instantiate(config.components[name], path=f"components.{name}", allow=None)
        if hasattr(parts[name], "dims"):
            config["_dims"].update(parts[name].dims())
    return parts


def losses_of(parts: dict[str, Any], spaces: Spaces) -> dict[str, Tensor]:
    batch, rssm = synthetic_batch(spaces=spaces), parts["representation_learner"]
    action = batch.action.float() if spaces.action.classes is None else nn.functional.one_hot(batch.action).float()
    carry, rng = rssm.initial(len(action), CPU), torch.Generator().manual_seed(0)
    latents, posterior = rssm.observe(carry, parts["encoder"](batch.obs), action, batch.is_first, rng)
    dynamics, representation = rssm.kl(posterior, rssm.prior(latents.deter))
    decoded = parts["decoder"](latents.deter, latents.stoch_vector)
    return {
        **{key: prediction.loss(batch.obs[key]) for key, prediction in decoded.items()},
        "reward": parts["reward_head"](latents.feature).loss(batch.reward),
        "continue": parts["continue_head"](latents.feature).loss((~batch.is_terminal).float()),
        "dynamics": dynamics,
        "representation": representation,
    }


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("spaces", [SPACES, MIXED])
def test_the_losses_of_a_form_reach_every_weight_of_its_world_model(form: str, spaces: Spaces) -> None:
    parts = world_model(form, spaces)
    losses = losses_of(parts, spaces)
    assert losses.keys() == {*spaces.obs, "reward", "continue", "dynamics", "representation"}
    assert {tuple(loss.shape) for loss in losses.values()} == {(4, 7)}
    weights = {f"{part}.{name}": weight for part in PARTS for name, weight in parts[part].named_parameters()}
    total = torch.stack([loss.mean() for loss in losses.values()]).sum()
    grads = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
    assert [name for name, grad in zip(weights, grads, strict=True) if grad is None] == []
    assert all(bool(grad.isfinite().all()) for grad in grads if grad is not None)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_fits_one_batch(form: str) -> None:
    """A few steps along the signs of the gradients bring down what can be learned by heart."""
    torch.manual_seed(0)
    parts = world_model(form, SPACES, "tiny")
    weights = [weight for part in parts.values() for weight in part.parameters()]
    history = []
    for _ in range(40):
        losses = {name: loss.mean() for name, loss in losses_of(parts, SPACES).items()}
        history.append({name: float(loss.detach()) for name, loss in losses.items()})
        grads = torch.autograd.grad(torch.stack(list(losses.values())).sum(), weights)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight -= 1e-3 * grad.sign()
    assert history[-1]["vector"] < 0.7 * history[0]["vector"]
    assert history[-1]["reward"] < 0.7 * history[0]["reward"]


def count(parts: dict[str, Any], *names: str) -> int:
    return sum(weight.numel() for name in names for weight in parts[name].parameters())


@pytest.fixture
def unset_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing the weights of a large model takes longer than counting them; so does loading torch's meta device."""
    monkeypatch.setattr(nn.init, "trunc_normal_", lambda weight, **_: weight)
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda weight, **_: weight)


@pytest.mark.usefixtures("unset_weights")
@pytest.mark.parametrize(("size", "millions"), [("2023_s", 18), ("2023_m", 37), ("2023_l", 77)])
def test_the_2023_sizes_have_the_published_number_of_parameters(size: str, millions: int) -> None:
    """As the first version of DreamerV3's paper (arXiv 2301.04104v1) gives them for S, M and L."""
    colour = Spaces(obs={"image": Space(shape=(64, 64, 3), dtype="uint8")}, action=EIGHTEEN)
    parts = world_model("dreamer_v3_2023", colour, size)
    # Its critic is a second reward head, and its actor a continue head with one output per action.
    actor = count(parts, "continue_head") + 17 * (composed(f"size={size}").size.units + 1)
    total = count(parts, *PARTS) + count(parts, "reward_head") + actor
    assert round(total / 1e6) == millions


@pytest.mark.usefixtures("unset_weights")
def test_the_world_model_of_dreamer_v2_has_twenty_million_parameters() -> None:
    """As its paper says of the Atari model, which sees gray pictures."""
    gray = Spaces(obs={"image": Space(shape=(64, 64, 1), dtype="uint8")}, action=EIGHTEEN)
    assert round(count(world_model("dreamer_v2", gray, "v2"), *PARTS) / 1e6) == 20
