"""Agents of which the published code left no numbers, against the same losses in float64.

Several observations and actions of all kinds, other networks and other settings. The losses in float64 are held against
the published numbers first.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from made_up_agent import MadeUpAgent, Spaces
from plain_dreamer import PlainDreamer
from test_dreamer_parity import Arrays, fixture, relative
from torch.nn import functional as F

from reverie.interop.dreamer_v3 import train_step
from reverie.interop.dreamer_v3_actions import LogStddevOutput
from reverie.interop.dreamer_v3_outputs import Distance

PUBLISHED = {
    "agent_continuous_vector": ({"vector": ((7,), None)}, {"action": ((3,), None)}),
    "agent_discrete_image": ({"image": ((64, 64, 3), None)}, {"action": ((), 5)}),
}
VECTOR = {"vector": ((4,), None)}
OBS: dict[str, Spaces] = {
    "vector": VECTOR,
    "picture": {"image": ((16, 24, 3), None)},
    "mixed": {
        "wrist": ((16, 24, 3), None),
        "camera": ((16, 24, 1), None),
        "speed": ((4,), None),
        "room": ((), 3),
        "height": ((), None),
        "grid": ((2, 2), None),
        "cards": ((2,), 5),
    },
}
ACTIONS: dict[str, Spaces] = {
    "discrete": {"walk": ((), 4), "look": ((), 3)},
    "several": {"walk": ((), 4), "buttons": ((2,), 3), "board": ((2, 2), 2)},
    "continuous": {"wheel": ((2,), None), "arm": ((3,), None)},
    "matrix": {"action": ((2, 2), None)},
    "number": {"action": ((), None)},
    "mixed": {
        "walk": ((), 4),
        "arm": ((3,), None),
        "buttons": ((2,), 3),
        "aim/fine": ((2, 2), None),
        "zoom": ((), None),
    },
}
SHAPES: list[tuple[str, str]] = [
    ("mixed", "mixed"),
    ("picture", "discrete"),
    ("vector", "several"),
    ("vector", "continuous"),
    ("vector", "matrix"),
    ("vector", "number"),
]


@cache
def made_up(obs: str, actions: str) -> MadeUpAgent:
    return MadeUpAgent(OBS[obs], ACTIONS[actions])


@cache
def ours(obs: str, actions: str) -> Arrays:
    agent = made_up(obs, actions)
    return train_step(agent.config, agent.params, agent.inputs)


@cache
def plain(obs: str, actions: str) -> PlainDreamer:
    agent = made_up(obs, actions)
    return PlainDreamer(agent.params, agent.inputs, obs=OBS[obs], actions=ACTIONS[actions])


def gradients(dreamer: PlainDreamer) -> Arrays:
    learning = {name: value for name, value in dreamer.params.items() if value.requires_grad}
    found = torch.autograd.grad(dreamer.total, list(learning.values()), retain_graph=True, materialize_grads=True)
    return {f"grad/{name}": grad.numpy() for name, grad in zip(learning, found, strict=True)}


def assert_same(found: Arrays, dreamer: PlainDreamer) -> None:
    expected = {f"loss/{name}": loss for name, loss in dreamer.losses.items()} | dreamer.seen
    expected["total_loss"] = dreamer.total
    for name, value in expected.items():
        assert found[name].shape == value.shape, name
        assert relative(found[name], value.detach().numpy()) <= 1e-5, name
    for name, grad in gradients(dreamer).items():
        assert relative(found[name], grad) <= 5e-5, name


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_losses_in_float64_are_the_published_ones(name: str) -> None:
    _, params, inputs, outputs = fixture(name)
    obs, actions = PUBLISHED[name]
    assert_same(outputs, PlainDreamer(params, {"sample_eps": np.zeros(0)} | inputs, obs=obs, actions=actions))


@pytest.mark.parametrize(("obs", "actions"), SHAPES)
def test_losses_and_gradients_of_any_agent(obs: str, actions: str) -> None:
    found, expected = ours(obs, actions), plain(obs, actions)
    assert_same(found, expected)
    assert {name for name in found if name.startswith("loss/")} == {f"loss/{name}" for name in expected.losses}


@pytest.mark.parametrize(("obs", "actions"), SHAPES)
def test_parameters_after_the_first_step(obs: str, actions: str) -> None:
    """Clipped, scaled by its own size and averaged with nothing, a gradient's first step is its sign times the rate."""
    found, params = ours(obs, actions), made_up(obs, actions).params
    for name, grad in gradients(plain(obs, actions)).items():
        key = name.removeprefix("grad/")
        step = found[f"after1/{key}"].astype(np.float64) - params[key]
        is_clear = np.abs(grad) > 1e-4 * np.abs(grad).max()
        np.testing.assert_allclose(step[is_clear], -1e-3 * np.sign(grad[is_clear]), atol=1e-6, err_msg=key)
    assert all(f"after2/{name}" in found for name in params)


@pytest.mark.parametrize(("obs", "actions"), SHAPES)
def test_losses_of_the_second_step(obs: str, actions: str) -> None:
    """From the carry, the parameters, the slow critic and the return scale that the first one left."""
    found, agent = ours(obs, actions), made_up(obs, actions)
    inputs = {name.replace("data2/", "data/"): value for name, value in agent.inputs.items() if name[:5] != "data/"}
    inputs["data/consec"] = np.array([[1], [0]])
    inputs |= {f"carry/dyn/{part}": found[f"after1_carry/dyn/{part}"] for part in ("deter", "stoch")}
    after = {name: found[f"after1/{name}"] for name in agent.params}
    expected = PlainDreamer(after, inputs, obs=OBS[obs], actions=ACTIONS[actions])
    again = train_step(agent.config, agent.params, agent.inputs | {"data2/consec": np.repeat([[1], [0]], 5, 1)})
    for name, loss in expected.losses.items():
        assert relative(again[f"after2_metric/loss/{name}"], loss.detach().mean().numpy()) <= 1e-5, name


@pytest.mark.parametrize(("obs", "actions"), SHAPES)
def test_every_key_of_the_actions_has_its_outputs(obs: str, actions: str) -> None:
    found, inputs = ours(obs, actions), made_up(obs, actions).inputs
    for key, (shape, classes) in ACTIONS[actions].items():
        numbers = ("mean", "stddev") if classes is None else ("logits",)
        last = () if classes is None else (classes,)
        for name in numbers:
            assert found[f"imag/policy_{name}/{key}"].shape == (8, 4, *shape, *last)
        assert found[f"imag/act/{key}"].shape == (8, 4, *shape)
        assert found[f"imag/act/{key}"].dtype == inputs[f"data/{key}"].dtype
        assert found[f"policy/action/{key}"].shape == (2, 3, *shape)
        assert np.array_equal(found[f"applied/prevact/{key}"], inputs[f"data/{key}"][:, :-1])
        assert (f"metric/rand/{key}" in found) == (shape == () and classes is not None)


def test_the_most_likely_classes_and_the_fixed_noise_are_drawn() -> None:
    found, inputs = ours("mixed", "mixed"), made_up("mixed", "mixed").inputs
    for key in ("walk", "buttons"):
        assert np.array_equal(found[f"imag/act/{key}"], found[f"imag/policy_logits/{key}"].argmax(-1))
    noise = dict(zip(("aim/fine", "arm", "zoom"), np.split(inputs["sample_eps"], [4, 7]), strict=True))
    for key, value in noise.items():
        mean, stddev = found[f"imag/policy_mean/{key}"], found[f"imag/policy_stddev/{key}"]
        drawn = mean + stddev * value.reshape(mean.shape[2:])
        np.testing.assert_allclose(found[f"imag/act/{key}"], drawn, rtol=1e-5, atol=1e-6)


FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "gelu": ({}, {"*.act": "gelu"}, {"act": partial(F.gelu, approximate="tanh")}),
    "relu": ({}, {r".*\.act": "relu"}, {"act": F.relu}),
    "layer": ({"norm": "layer"}, {"*.norm": "layer"}, {}),
    "none": ({"norm": "none"}, {"*.norm": "none", "*.act": "tanh"}, {"act": torch.tanh}),
    "mse": ({"output": "pred"}, {"*.output": "mse", "agent.conhead.output": "binary"}, {}),
    "numbers": ({}, {"*.symlog": False, "agent.dec.simple.symlog": False}, {"has_symlog": False}),
    "sizes": (
        {"layers": 1, "bins": 15, "channels": (8,)},
        {
            "*.layers": 1,
            "*.units": 8,
            "*.bins": 15,
            "*.mults": [2],
            "*.depth": 4,
            "agent": {"dyn": {"rssm": {"deter": 16}}},
        },
        {},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_networks_of_other_forms(name: str) -> None:
    made, config, settings = FORMS[name]
    obs, actions = OBS["mixed"], ACTIONS["mixed"]
    agent = MadeUpAgent(obs, actions, **made)
    found = train_step(agent.config | config, agent.params, agent.inputs)
    assert_same(found, PlainDreamer(agent.params, agent.inputs, obs=obs, actions=actions, **settings))


def test_every_reconstruction_may_have_its_own_weight() -> None:
    agent, expected = made_up("mixed", "mixed"), plain("mixed", "mixed")
    weights = {"agent.loss_scales.rec": 0.5, "agent.loss_scales.speed": 2.0, "agent.loss_scales.wrist": 0.0}
    found = train_step(agent.config | weights, agent.params, agent.inputs | {"scale/room": np.float32(3.0)})
    keys = dict.fromkeys(OBS["mixed"], 0.5) | {"speed": 2.0, "wrist": 0.0, "room": 3.0}
    changed = sum((weight - 1) * float(expected.losses[key].detach().mean()) for key, weight in keys.items())
    assert float(found["total_loss"]) == pytest.approx(float(expected.total.detach()) + changed, rel=1e-5)
    assert {key: float(found[f"scale/{key}"]) for key in keys} == keys
    rest = expected.total - sum(expected.losses[key].mean() for key in keys)
    rest = rest + sum(keys[key] * expected.losses[key].mean() for key in keys if key not in ("wrist", "camera"))
    name = "dyn/obs0/kernel"
    (grad,) = torch.autograd.grad(rest, expected.params[name], retain_graph=True)
    assert relative(found[f"grad_noimage/{name}"], grad.numpy()) <= 5e-5
    assert found["metric/loss/wrist"] > 0


def test_other_outputs_by_their_formulas() -> None:
    guess, target = torch.tensor([0.5, -2.0, 3.0]), torch.tensor([1.0, 4.0, -30.0])
    symlogged = target.sign() * target.abs().log1p()
    torch.testing.assert_close(Distance(guess, form="mse").loss(target), (guess - target) ** 2)
    torch.testing.assert_close(Distance(guess, form="symlog_mse").loss(target), (guess - symlogged) ** 2)
    torch.testing.assert_close(Distance(guess, form="huber").loss(target), ((guess - target) ** 2 + 1) ** 0.5 - 1)
    output = LogStddevOutput(4, 2, outscale=1.0)
    hidden = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    policy = output(hidden)
    torch.testing.assert_close(policy.mean, output.mean(hidden))
    torch.testing.assert_close(policy.stddev, output.stddev(hidden).exp())
