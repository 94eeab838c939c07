"""DreamerV3 on every kind of observation and action: it learns from all of them and its weights travel."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small_dreamer import CPU, first_latent, phase, shaken_dreamer, small_dreamer, synthetic_batch

from reverie.components.networks.actions import ActionHead
from reverie.interop.dreamer_v3 import load_parameters, parameters, train_step
from reverie.types import Observation, Space, Spaces
from reverie.workflows.dreamer import Dreamer

PICTURE = Space(shape=(32, 32, 3), dtype="uint8")
VECTOR = Space(shape=(4,), dtype="float32")
OBS = {
    "vector": {"vector": VECTOR},
    "image": {"image": PICTURE},
    "mixed": {
        "wrist": PICTURE,
        "camera": Space(shape=(32, 32, 1), dtype="uint8"),
        "speed": VECTOR,
        "room": Space(shape=(), dtype="int64", classes=3),
        "type": Space(shape=(), dtype="float32"),
        "robot.arm": VECTOR,
        "cards": Space(shape=(2,), dtype="int64", classes=(5, 5)),
    },
}
ACTIONS = {
    "discrete": Space(shape=(), dtype="int64", classes=3),
    "several": Space(shape=(2,), dtype="int64", classes=(4, 4)),
    "continuous": Space(shape=(2,), dtype="float32"),
}
PAIRS = [
    ("image", "discrete"),
    ("mixed", "discrete"),
    ("mixed", "continuous"),
    ("mixed", "several"),
    ("vector", "continuous"),
    ("vector", "several"),
]
SETTINGS = (
    "workflow.horizon=3",
    "workflow.free_nats=0",
    "optimizers.model.warmup_updates=0",
    "workflow.loss_weights.reconstruction=1.0",
)


def spaces_of(obs: str, action: str) -> Spaces:
    return Spaces(obs=OBS[obs], action=ACTIONS[action])


def weights(workflow: Dreamer) -> dict[str, torch.Tensor]:
    return {
        f"{name}.{key}": value.clone()
        for name, module in workflow.modules().items()
        for key, value in module.state_dict().items()
    }


@pytest.mark.parametrize(("obs", "action"), PAIRS)
def test_an_update_moves_every_parameter(obs: str, action: str) -> None:
    spaces = spaces_of(obs, action)
    workflow = shaken_dreamer(*SETTINGS, spaces=spaces, size=0.2)
    before = weights(workflow)
    result = workflow.update(synthetic_batch(spaces=spaces, size=2), phase=phase())
    assert all(bool(value.isfinite()) for value in result.metrics.values())
    unmoved = [name for name, value in weights(workflow).items() if torch.equal(value, before[name])]
    assert unmoved == []


@pytest.mark.parametrize(("obs", "action"), PAIRS)
def test_the_policy_chooses_actions_of_the_space(obs: str, action: str) -> None:
    spaces = spaces_of(obs, action)
    workflow = small_dreamer(spaces=spaces)
    batch = synthetic_batch(spaces=spaces)
    policy = workflow.policy(None)
    carry = policy.initial(4)
    for t in range(3):
        seen = Observation(
            obs={key: value[:, t] for key, value in batch.obs.items()},
            reward=batch.reward[:, t],
            is_first=batch.is_first[:, t],
            is_last=batch.is_last[:, t],
            is_terminal=batch.is_terminal[:, t],
        )
        carry, chosen, stored = policy.act(carry, seen, mode="train")
        assert chosen.shape == batch.action[:, t].shape
        assert chosen.dtype == batch.action.dtype
        assert carry["action"].shape == (4, spaces.action.dim)
        assert set(stored) == {"deter", "stoch"}


def test_pictures_stay_bytes_until_they_reach_the_encoder() -> None:
    spaces = spaces_of("image", "discrete")
    batch = synthetic_batch(spaces=spaces)
    assert batch.obs["image"].dtype == torch.uint8
    workflow = shaken_dreamer(spaces=spaces)
    encoder = workflow.modules()["encoder"]
    dark, light = ({"image": torch.full((1, 32, 32, 3), value, dtype=torch.uint8)} for value in (0, 255))
    assert not torch.allclose(encoder(dark), encoder(light))


@pytest.mark.parametrize(("obs", "action"), [("mixed", "several"), ("mixed", "continuous")])
def test_the_comparison_runs_the_workflow_s_own_update(obs: str, action: str) -> None:
    """A fixture made of our own numbers: keys in no order, two pictures, discrete vectors, independent classes."""
    spaces = spaces_of(obs, action)
    noise = torch.tensor([0.7, -1.1])
    workflow = shaken_dreamer(*SETTINGS, "size.bins=15", "controller.actor.unimix=0.0", spaces=spaces, size=0.2)
    order = [key for key, space in spaces.obs.items() if space.is_image]
    assert order != sorted(order)
    params = parameters(workflow, image_keys=order)
    batch = synthetic_batch(spaces=spaces, size=2)
    carry = first_latent(workflow, batch)
    data = {f"data/{key}": value.numpy() for key, value in batch.obs.items()}
    data |= {f"data/{key}": getattr(batch, key).numpy() for key in ("reward", "is_first", "is_last", "is_terminal")}
    stoch = torch.nn.functional.one_hot(batch.stored["stoch"].long(), 4).float()
    data |= {
        "data/action": batch.action.numpy(),
        "data/consec": np.zeros((2, 7), np.int32),
        "data/dyn/deter": batch.stored["deter"].float().numpy(),
        "data/dyn/stoch": stoch.numpy(),
        "sample_eps": noise.numpy(),
    }
    config = {"obs": dict.fromkeys(spaces.obs), "agent.imag_length": 3, "agent.opt.lr": 7e-4, "agent.opt.warmup": 0}
    config |= {"agent.imag_loss.actent": 3e-3, "agent.dyn.rssm.free_nats": 0}
    outputs = train_step(config, params, data)

    workflow.draw_the_most_likely()
    if action == "continuous":
        fix_noise(workflow, noise)
    learned = workflow.learned(carry, batch)
    for key, loss in learned.modelled.reconstruction.items():
        np.testing.assert_allclose(outputs[f"loss/{key}"], loss.detach().numpy(), rtol=1e-5)
    np.testing.assert_allclose(outputs["imag/ret"], learned.judged.returns.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs["imag/act/action"], learned.dreamed.action.numpy(), rtol=1e-5)
    workflow.step(learned, progress=torch.zeros(()))
    for name, value in parameters(workflow, image_keys=order).items():
        np.testing.assert_allclose(outputs[f"after1/{name}"], value, rtol=1e-5, atol=1e-6, err_msg=name)
    assert outputs["imag/policy_entropy/action"].shape == (12, 4)


def fix_noise(workflow: Dreamer, noise: torch.Tensor) -> None:
    actor = workflow.modules()["actor"]
    assert isinstance(actor, ActionHead)
    forward = actor.forward

    def fixed(feature: torch.Tensor) -> object:
        policy = forward(feature)
        policy.drawn = lambda _noise: (policy.mean + policy.stddev * noise).detach()
        return policy

    vars(actor)["forward"] = fixed


def test_weights_travel_between_models_with_pictures_in_any_order() -> None:
    spaces = spaces_of("mixed", "continuous")
    one, other = shaken_dreamer(spaces=spaces), shaken_dreamer(spaces=spaces, size=0.1)
    given = parameters(one, image_keys=["wrist", "camera"])
    load_parameters(other, given, image_keys=["wrist", "camera"])
    assert all(torch.equal(value, weights(one)[name]) for name, value in weights(other).items())
    swapped = parameters(one, image_keys=["camera", "wrist"])
    kernel = given["dec/imgout/kernel"]
    assert np.array_equal(swapped["dec/imgout/kernel"], np.concatenate([kernel[..., 3:], kernel[..., :3]], -1))
    assert other.modules()["encoder"](synthetic_batch(spaces=spaces).obs).device == CPU
