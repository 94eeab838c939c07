"""Whole DreamerV3 agents against the published code: every loss, every gradient, every parameter after the step."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from reference import FOLDER
from small_dreamer import shaken_dreamer

from reverie.interop.dreamer_v3 import load_parameters, parameters, train_step
from reverie.types import ReverieError

Arrays = dict[str, np.ndarray]
FILES = ["agent_discrete_image", "agent_continuous_vector"]
INPUTS = ("data", "data2", "carry", "sample_eps")


@cache
def fixture(name: str) -> tuple[dict[str, Any], Arrays, Arrays, Arrays]:
    """Configuration, parameters, inputs, and what the published code made of them."""
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files}
    config = json.loads(str(arrays.pop("config")))
    params = {key.removeprefix("param/"): value for key, value in arrays.items() if key.startswith("param/")}
    inputs = {key: value for key, value in arrays.items() if key.split("/")[0] in INPUTS}
    outputs = {key: value for key, value in arrays.items() if key not in inputs and not key.startswith("param/")}
    return config, params, inputs, outputs


@cache
def ours(name: str) -> Arrays:
    config, params, inputs, _ = fixture(name)
    return train_step(config, params, inputs)


def relative(actual: np.ndarray, expected: np.ndarray) -> float:
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
    return float(difference / (np.abs(expected.astype(np.float64)).max(initial=0) or 1.0))


TOLERANCES = {"grad": 5e-5, "grad_noimage": 5e-5, "gradnorm_by_loss": 1e-4, "metric/opt/update_rms": 1e-4}
"""Relative to the largest value of the array; 1e-5 for all others."""


def tolerance(key: str) -> float:
    return TOLERANCES.get(key, TOLERANCES.get(key.split("/")[0], 1e-5))


@pytest.mark.parametrize("name", FILES)
def test_every_output_has_its_name_shape_and_type(name: str) -> None:
    expected = fixture(name)[3]
    assert ours(name).keys() == expected.keys()
    assert {key: (value.shape, value.dtype) for key, value in ours(name).items()} == {
        key: (value.shape, value.dtype) for key, value in expected.items()
    }


@pytest.mark.parametrize("name", FILES)
def test_losses_gradients_dreams_and_metrics(name: str) -> None:
    for key, expected in fixture(name)[3].items():
        if expected.dtype.kind == "U":
            assert (ours(name)[key] == expected).all(), key
        elif not key.startswith(("after1/", "after2/")):
            assert relative(ours(name)[key], expected) <= tolerance(key), key


@pytest.mark.parametrize("name", FILES)
def test_gradients_point_in_the_same_direction(name: str) -> None:
    for key, expected in fixture(name)[3].items():
        if key.startswith(("grad/", "grad_noimage/")) and expected.any():
            a, b = ours(name)[key].astype(np.float64).ravel(), expected.astype(np.float64).ravel()
            assert a @ b / np.linalg.norm(a) / np.linalg.norm(b) > 0.99999, key


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("after", ["after1", "after2"])
def test_parameters_after_each_step(name: str, after: str) -> None:
    differences = []
    for key, expected in fixture(name)[3].items():
        if key.startswith(f"{after}/"):
            difference = np.abs(ours(name)[key].astype(np.float64) - expected)
            differences.append(difference.ravel())
            if key.startswith((f"{after}/slowval", f"{after}/retnorm")):
                assert relative(ours(name)[key], expected) <= 1e-5, key
    assert (np.concatenate(differences) > 1e-5).mean() <= 1e-3


@pytest.mark.parametrize("name", FILES)
def test_no_gradient_flows_where_none_may(name: str) -> None:
    key = "gradnorm_by_loss/norms"
    assert ((ours(name)[key] == 0) == (fixture(name)[3][key] == 0)).all()


@pytest.mark.parametrize(
    ("change", "output"),
    [
        ({"agent.imag_loss.lam": 0.9}, "imag/ret"),
        ({"agent.repl_loss.lam": 0.9}, "repl/ret"),
        ({"agent.imag_loss.actent": 3e-2}, "loss/policy"),
        ({"agent.horizon": 100}, "loss/con"),
        ({"agent.dyn.rssm.unimix": 0.05}, "loss/dyn"),
        ({"agent.dyn.rssm.free_nats": 1.5}, "loss/rep"),
        ({"agent.policy.minstd": 0.3}, "imag/policy_stddev/action"),
        ({"agent.retnorm.rate": 0.1}, "imag/retnorm_scale"),
        ({"agent.slowvalue.rate": 0.5}, "after1/slowval/head/logits/bias"),
        ({"agent.opt.warmup": 10}, "after1/val/mlp/linear0/kernel"),
        ({"agent.opt.lr": 4e-5}, "after1/val/mlp/linear0/kernel"),
        ({"agent.opt.beta1": 0.1}, "after2/val/mlp/linear0/kernel"),
        ({"agent.reward_grad": False}, "grad/enc/mlp0/kernel"),
        ({"agent.repval_grad": False}, "grad/enc/mlp0/kernel"),
    ],
)
def test_the_settings_of_the_configuration_are_read(change: dict[str, Any], output: str) -> None:
    """Each of them changes what the fixture checks."""
    config, params, inputs, expected = fixture("agent_continuous_vector")
    assert relative(train_step(config | change, params, inputs)[output], expected[output]) > 1e-4


def test_a_switch_that_is_not_supported_is_refused() -> None:
    config, params, inputs, _ = fixture("agent_continuous_vector")
    with pytest.raises(ReverieError, match=r"agent\.contdisc"):
        train_step(config | {"agent.contdisc": False}, params, inputs)


@pytest.mark.parametrize("name", FILES)
def test_the_carry_is_read_where_a_sequence_goes_on(name: str) -> None:
    config, params, inputs, expected = fixture(name)
    moved = inputs | {"data/consec": np.zeros_like(inputs["data/consec"])}
    goes_on = inputs["data/consec"][:, 0] != 0
    carry = train_step(config, params, moved)["applied/carry/deter"]
    assert not np.allclose(carry[goes_on], expected["applied/carry/deter"][goes_on])
    assert np.array_equal(carry[~goes_on], expected["applied/carry/deter"][~goes_on])


def test_parameters_come_back_as_they_went() -> None:
    workflow, other = shaken_dreamer(), shaken_dreamer(size=0.1)
    given = parameters(workflow)
    load_parameters(other, given)
    again = parameters(other)
    assert again.keys() == given.keys()
    assert all(np.array_equal(again[name], value) for name, value in given.items())
    for name, module in workflow.modules().items():
        theirs = other.modules()[name].state_dict()
        assert all(torch.equal(theirs[key], value) for key, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"enc/mlp9/bias": np.zeros(3, np.float32)}, "unknown enc/mlp9/bias"),
        ({"enc/mlp0/bias": np.zeros(3, np.float32)}, r"enc/mlp0/bias has the shape \(3,\)"),
    ],
)
def test_parameters_that_do_not_fit_are_refused(change: Arrays, complaint: str) -> None:
    workflow = shaken_dreamer()
    before = parameters(workflow)
    with pytest.raises(ReverieError, match=complaint):
        load_parameters(workflow, before | change)
    assert all(np.array_equal(value, before[name]) for name, value in parameters(workflow).items())
