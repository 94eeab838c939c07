"""What a published step may be configured to do: every setting that changes the numbers is followed or refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from made_up_agent import MadeUpAgent
from test_dreamer_parity import Arrays, fixture

from reverie.interop.dreamer_v3 import train_step
from reverie.types import ReverieError

CONTINUOUS, PICTURE = "agent_continuous_vector", "agent_discrete_image"


def changed(config: dict[str, Any], output: str, name: str = CONTINUOUS) -> bool:
    given, params, inputs, expected = fixture(name)
    return not np.allclose(train_step(given | config, params, inputs)[output], expected[output], rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize(
    ("config", "output"),
    [
        ({"*.act": "gelu"}, "out/tokens"),
        ({"agent.enc.simple.act": "relu"}, "out/tokens"),
        ({"agent.dyn.rssm.norm": "rms1em1"}, "out/feat/deter"),
        ({"*.symlog": False}, "out/tokens"),
        ({"agent.dec.simple.symlog": False}, "loss/vector"),
        ({"*.unimix": 0.2}, "loss/dyn"),
        ({"*.lr": 0.1}, "after1/enc/mlp0/bias"),
        ({r".*\.lr": 0.1}, "after1/enc/mlp0/bias"),
        ({"agent": {"opt": {"lr": 0.1}}}, "after1/enc/mlp0/bias"),
        ({"agent.opt.agc": 1e-12, "agent.opt.eps": 1e-3}, "after1/enc/mlp0/bias"),
        ({"agent.opt.pmin": 10.0, "agent.opt.eps": 1e-3}, "after1/enc/mlp0/bias"),
        ({"agent.policy_dist_cont": "normal_logstd"}, "imag/policy_stddev/action"),
        ({"agent.loss_scales.vector": 2.0}, "total_loss"),
    ],
)
def test_settings_are_followed_by_their_names_and_by_patterns(config: dict[str, Any], output: str) -> None:
    assert changed(config, output)


@pytest.mark.parametrize(
    "config",
    [
        {"batch_size": 7, "seed": 3, "run.steps": 10, "jax.platform": "cpu", "replay.size": 5, "logdir": "elsewhere"},
        {"agent.report": False, "*.winit": "normal", "*.outscale": 2.0, "agent.opt.anneal": 10, "*.mults": [1]},
        {"agent.policy.unimix": 0.5},
        {"agent.policy.units": 16, "*.kernel": 3},
    ],
)
def test_what_changes_no_number_is_let_through(config: dict[str, Any]) -> None:
    """No picture is there for a kernel, and the reference has no mix in its policies."""
    assert not changed(config, "after2/pol/mlp/linear0/kernel")


def test_the_last_of_several_entries_counts() -> None:
    assert not changed({"*.act": "gelu", "agent.enc.simple.act": "silu"}, "out/tokens")
    assert changed({"agent.enc.simple.act": "silu", "*.act": "gelu"}, "out/tokens")


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"*.act": "swiglu"}, r"`\*\.act` \(for agent\.enc\.simple\.act\) is swiglu"),
        ({"agent.value.norm": "batch"}, r"`agent\.value\.norm` is batch, but only rms, layer, none"),
        ({"*.norm": "layer"}, "missing con/mlp/norm0/shift"),
        ({"agent.rewhead.output": "onehot"}, r"`agent\.rewhead\.output` is onehot"),
        ({"agent.rewhead.output": "mse"}, "missing rew/head/pred"),
        ({"agent.policy_dist_cont": "tanh_normal"}, r"`agent\.policy_dist_cont` is tanh_normal"),
        ({"*.strided": True}, r"`\*\.strided` \(for agent\.enc\.simple\.strided\) is True, but only False"),
        ({"*.slowtar": True}, r"`\*\.slowtar`"),
        ({"agent.dec.typ": "other"}, r"`agent\.dec\.typ` is other"),
        ({"agent.imag_loss.slowreg": 0.5}, r"slowreg` \(0\.5\) and .* \(1\.0\) must be equal"),
        ({"replay_context": 0}, "`replay_context` is 0"),
        ({"replay_context": 5}, "at least two steps behind its 5 of context"),
        ({"agent.rewhead.bins": 41}, r"`agent\.rewhead\.bins` is 41, but the given parameters have 255"),
        ({"agent.dyn.rssm.deter": 128}, r"`agent\.dyn\.rssm\.deter` is 128, but the given parameters have 64"),
        ({"*.units": 12}, r"`\*\.units` \(for agent\.enc\.simple\.units\) is 12"),
        ({"agent.policy.layers": 2}, r"`agent\.policy\.layers` is 2, but the given parameters have 3"),
        ({"obs": {"other": [3]}}, "the array data/other is missing"),
    ],
)
def test_what_cannot_be_followed_is_refused_by_name(config: dict[str, Any], complaint: str) -> None:
    given, params, inputs, _ = fixture(CONTINUOUS)
    with pytest.raises(ReverieError, match=complaint):
        train_step(given | config, params, inputs)


@pytest.mark.parametrize(
    ("config", "complaint"),
    [
        ({"*.mults": [2, 3, 4]}, r"`\*\.mults` .* is \[2, 3, 4\], but the given parameters have 4 stages"),
        ({"agent.dec.simple.mults": [1, 2, 3, 4]}, r"at depth 4 the given parameters have \[8, 12, 16, 16\]"),
        ({"*.kernel": 3}, r"`\*\.kernel` .* is 3, but the given parameters have 5"),
        ({"agent.dec.simple.bspace": 4}, "bspace` is 4, but the given parameters have 8"),
    ],
)
def test_sizes_of_pictures_are_held_against_the_parameters(config: dict[str, Any], complaint: str) -> None:
    given, params, inputs, _ = fixture(PICTURE)
    with pytest.raises(ReverieError, match=complaint):
        train_step(given | config, params, inputs)


@pytest.mark.parametrize(
    ("missing", "complaint"),
    [
        ("data/dyn/stoch", "the array data/dyn/stoch is missing"),
        ("data/vector", "the array data/vector is missing"),
        ("data2/consec", "the array data2/consec is missing"),
        ("carry/dyn/stoch", "the array carry/dyn/stoch is missing"),
        ("sample_eps", "needs the array sample_eps"),
        ("dyn/dynin0/kernel", "the parameter dyn/dynin0/kernel is missing"),
        ("dyn/dynhid0/kernel", "the parameter dyn/dynhid0/kernel is missing"),
        ("enc/mlp0/kernel", "parameters of enc do not fit the observations"),
        ("rew/mlp/linear0/kernel", "no rew/mlp/linear0"),
        ("rew/head/logits/kernel", "rew do not fit"),
        ("pol/head/action/mean/kernel", "the given policy has no action"),
        ("val/mlp/norm0/scale", "missing val/mlp/norm0/scale"),
    ],
)
def test_what_is_missing_is_named(missing: str, complaint: str) -> None:
    config, params, inputs, _ = fixture(CONTINUOUS)
    with pytest.raises(ReverieError, match=complaint):
        train_step(config, *({key: one[key] for key in one if key != missing} for one in (params, inputs)))


@pytest.mark.parametrize(
    ("name", "array", "complaint"),
    [
        (CONTINUOUS, {"sample_eps": np.zeros(2, np.float32)}, "sample_eps has 2 values for the 3 numbers of 'action'"),
        (CONTINUOUS, {"data/is_last": np.zeros((3, 4), bool)}, r"data/is_last has the shape \(3, 4\)"),
        (CONTINUOUS, {"data/reward": np.zeros(3, np.float32)}, r"data/reward must have 2 axes"),
        (
            CONTINUOUS,
            {"data/vector": np.zeros((3, 6, 5), np.float32)},
            r"dec/vec/vector/pred/bias has the shape \(7,\)",
        ),
        (CONTINUOUS, {"carry/dyn/deter": np.zeros((3, 32), np.float32)}, r"the model has \(64, 4, 6\)"),
        (CONTINUOUS, {"data/action": np.zeros((3, 6, 2), np.float32)}, "sample_eps has 3 values for the 2 numbers"),
        (PICTURE, {"data/action": np.full((3, 5), 5, np.int32)}, "data/action must hold classes from 0 to 4"),
    ],
)
def test_arrays_that_do_not_fit_are_named(name: str, array: Arrays, complaint: str) -> None:
    config, params, inputs, _ = fixture(name)
    with pytest.raises(ReverieError, match=complaint):
        train_step(config, params, inputs | array)


def test_the_noise_of_several_actions_may_come_in_one_array_or_in_several() -> None:
    agent = MadeUpAgent({"vector": ((4,), None)}, {"wheel": ((3,), None), "arm": ((3,), None), "walk": ((), 4)})
    without = {name: value for name, value in agent.inputs.items() if name != "sample_eps"}
    arm, wheel = np.split(agent.inputs["sample_eps"], 2)

    def drawn(noise: Arrays) -> Arrays:
        found = train_step(agent.config, agent.params, without | noise)
        return {key: found[f"imag/act/{key}"] for key in ("arm", "wheel")}

    joined = drawn({"sample_eps": np.concatenate([arm, wheel])})
    own = drawn({"sample_eps/wheel": wheel, "sample_eps/arm": arm})
    assert all(np.array_equal(joined[key], own[key]) for key in joined)
    shared, twice = drawn({"sample_eps": arm}), drawn({"sample_eps": np.concatenate([arm, arm])})
    assert all(np.array_equal(shared[key], twice[key]) for key in shared)
    assert not np.allclose(shared["wheel"], joined["wheel"])
