"""TD-MPC2 against the published code: formulas, every network, whole updates with their gradients, and plans."""

from __future__ import annotations

import json
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from reverie.components.controllers.policy_prior import bounded_log_std, squashed_draw
from reverie.components.controllers.return_scale import RunningRange, _quantile
from reverie.components.networks.normed import NormedLinear, SimNorm
from reverie.components.networks.numbers import TwoHotForm
from reverie.components.networks.symlog import symexp, symlog
from reverie.interop import tdmpc2
from reverie.types import ReverieError
from reverie.workflows.tdmpc_config import Discount

Arrays = dict[str, np.ndarray]
FOLDER = Path(__file__).parent / "fixtures" / "tdmpc2"
FUNCTIONS = {
    "update": tdmpc2.update,
    "update_clipped": tdmpc2.update,
    "update_episodic": tdmpc2.update,
    "model": tdmpc2.model,
    "plan": tdmpc2.plan,
}
PLAN_INPUTS = ("obs", "prev_mean", "t0", "eval_mode")
TOLERANCES = {"grad": 5e-5, "plan1": 5e-5, "plan2": 5e-5, "plan3": 5e-5, "pi_entropy": 5e-3}


@cache
def arrays(name: str) -> Arrays:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as file:
        return {key: file[key] for key in file.files}


def tensors(name: str) -> dict[str, Tensor]:
    return {key: torch.from_numpy(value.copy()) for key, value in arrays(name).items() if value.dtype.kind != "U"}


def is_input(key: str) -> bool:
    first, _, rest = key.partition("/")
    if first.startswith("plan"):
        return rest in PLAN_INPUTS or rest.startswith("noise")
    return first in ("obs", "action", "eps", "scale_value") or first.startswith(("batch", "noise"))


def fixture(name: str) -> tuple[dict[str, Any], Arrays, Arrays, Arrays]:
    """Configuration, parameters, inputs, and what the published code made of them."""
    every = dict(arrays(name))
    config = json.loads(str(every.pop("config")))
    params = {key: value for key, value in every.items() if key.startswith("param/")}
    inputs = {key: value for key, value in every.items() if is_input(key)}
    return config, params, inputs, {k: v for k, v in every.items() if k not in params and k not in inputs}


@cache
def ours(name: str) -> Arrays:
    config, params, inputs, _ = fixture(name)
    return FUNCTIONS[name](config, params, inputs)


def relative(actual: np.ndarray, expected: np.ndarray) -> float:
    difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64)).max(initial=0)
    return float(difference / (np.abs(expected.astype(np.float64)).max(initial=0) or 1.0))


def near(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> bool:
    return relative(actual.detach().numpy(), expected.numpy()) <= tolerance


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_output_has_its_name_shape_and_type(name: str) -> None:
    expected = fixture(name)[3]
    assert {key: (value.shape, value.dtype) for key, value in ours(name).items()} == {
        key: (value.shape, value.dtype) for key, value in expected.items()
    }


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_output_has_its_value(name: str) -> None:
    found, expected = ours(name), fixture(name)[3]
    compared = {key for key in expected if not key.startswith("after") or key.endswith("scale_value")}
    for key in compared:
        if expected[key].dtype.kind == "i":
            assert np.array_equal(found[key], expected[key]), key
        else:
            first, _, last = key.partition("/")
            allowed = TOLERANCES.get(last or first, TOLERANCES.get(first, 1e-5))
            assert relative(found[key], expected[key]) <= allowed, key
    assert len(compared) > 15


def test_what_is_kept_in_one_tensor_shows_its_last_value_and_each_call_its_own_elsewhere() -> None:
    found, plans = ours("update"), ours("plan")
    scales = [found[f"info{number}/pi_scale"] for number in (1, 2, 3)]
    assert len({float(scale) for scale in scales}) == 3
    assert all(relative(found[f"after{number}/scale_value"][0], scales[-1]) < 1e-6 for number in (1, 2, 3))
    means = [plans[f"plan{number}/mean"][-1] for number in (1, 2, 3)]
    assert relative(means[0], means[2]) > 1e-2
    assert all(np.array_equal(plans[f"plan{number}/prev_mean_after"], means[2]) for number in (1, 2, 3))


@pytest.mark.parametrize("name", ["update", "update_clipped", "update_episodic"])
def test_every_parameter_after_every_update(name: str) -> None:
    """An element whose gradient is rounding noise may go the other way."""
    found, expected = ours(name), fixture(name)[3]
    after = [key for key in expected if key.startswith("after") and not key.endswith("scale_value")]
    assert any("_target_Qs" in key for key in after)
    apart = np.concatenate([np.abs(found[key] - expected[key]).ravel() for key in after])
    assert (apart > 1e-5).mean() < 1e-3
    moved = np.concatenate(
        [np.abs(expected[key] - arrays(name)[f"param/{key.partition('/')[2]}"]).ravel() for key in after]
    )
    assert moved.mean() > 1e-5


def test_names_may_stand_with_and_without_their_prefix() -> None:
    config, params, inputs, _ = fixture("model")
    plain = {name.removeprefix("param/"): value for name, value in params.items()}
    assert np.array_equal(tdmpc2.model(config, plain, inputs)["q_logits"], ours("model")["q_logits"])


def test_the_weights_come_out_as_they_went_in() -> None:
    config, params, _, _ = fixture("update_episodic")
    workflow = tdmpc2._loaded(config, params)
    out = tdmpc2.parameters(workflow)
    assert {f"param/{name}" for name in out} == params.keys()
    assert all(np.array_equal(value, params[f"param/{name}"]) for name, value in out.items())


REFUSALS = {
    "multitask": ({"multitask": True}, "multitask"),
    "dropout": ({"dropout": 0.1}, "dropout"),
    "bins": ({"num_bins": 1}, "num_bins"),
    "unknown": ({"curiosity": 1}, "curiosity"),
    "episodic": ({"episodic": True}, "_termination"),
    "size": ({"mlp_dim": 48}, "mlp_dim"),
    "members": ({"num_q": 2}, "num_q"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_what_cannot_be_followed_is_refused_by_name(kind: str) -> None:
    changed, word = REFUSALS[kind]
    config, params, inputs, _ = fixture("update")
    with pytest.raises(ReverieError, match=word):
        tdmpc2.update({**config, **changed}, params, inputs)


def test_a_missing_array_is_named() -> None:
    config, params, inputs, _ = fixture("update")
    without = {key: value for key, value in inputs.items() if key != "noise2/pi_eps"}
    with pytest.raises(ReverieError, match="noise2/pi_eps"):
        tdmpc2.update(config, params, without)
    with pytest.raises(ReverieError, match=r"_pi\.0\.weight"):
        tdmpc2.update(config, {key: value for key, value in params.items() if key != "param/_pi.0.weight"}, inputs)


def test_symlog_and_two_hot() -> None:
    given = tensors("math")
    assert near(symlog(given["symlog/x"]), given["symlog/symlog"], 1e-6)
    assert near(symexp(given["symexp/x"]), given["symexp/symexp"], 1e-6)
    form, x = TwoHotForm(), given["two_hot/x"].squeeze(-1)
    logits = given["two_hot/logits"].clone().requires_grad_()
    loss = form(logits).loss(x)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    assert near(loss, given["two_hot/soft_ce"].squeeze(-1))
    assert near(gradient, given["two_hot/grad_soft_ce_sum"])
    # The gradient of a cross entropy is the prediction minus the target.
    assert near(logits.softmax(-1) - gradient, given["two_hot/target"])
    value = form(logits).mean()
    assert near(value, given["two_hot/two_hot_inv"].squeeze(-1))
    (gradient,) = torch.autograd.grad(value[:20].sum(), logits)
    assert near(gradient[:20], given["two_hot/grad_inv_sum"], 5e-5)


def test_simnorm_and_normed_linear() -> None:
    given = tensors("math")
    assert near(SimNorm(8)(given["simnorm/x"]), given["simnorm/y"], 1e-6)
    layer = NormedLinear(6, 9)
    prefix = "normed_linear/param/"
    layer.load_state_dict({k.removeprefix(prefix): v for k, v in given.items() if k.startswith(prefix)})
    assert near(layer(given["normed_linear/x"]), given["normed_linear/y"], 1e-6)


def test_the_policy() -> None:
    given = {key.removeprefix("policy/"): value for key, value in tensors("math").items()}
    log_std = bounded_log_std(given["raw_log_std"], low=-10, span=12)
    action, gaussian, squashed = squashed_draw(given["raw_mean"], log_std, given["eps"])
    assert near(log_std, given["log_std"], 1e-6)
    assert near(given["raw_mean"].tanh(), given["squashed_mean"], 1e-6)
    assert near(action, given["squashed_action"], 1e-6)
    assert near(gaussian, given["gaussian_logprob"].squeeze(-1))
    assert near(squashed, given["squashed_logprob"].squeeze(-1), 5e-3)


def test_the_discount() -> None:
    given = tensors("math")
    lengths = given["discount/episode_length"].tolist()
    found = torch.tensor([Discount().of(length) for length in lengths])
    assert near(found, given["discount/discount"], 1e-6)
    assert len(set(found.tolist())) > 3


@pytest.mark.parametrize("count", ["n4", "n21"])
def test_the_running_scale(count: str) -> None:
    given, scale = tensors("scale"), RunningRange()
    for number, x in enumerate(given[f"{count}/x"]):
        ordered = x.flatten().sort().values
        percentiles = torch.stack([_quantile(ordered, 0.05), _quantile(ordered, 0.95)]).unsqueeze(-1)
        assert near(percentiles, given[f"{count}/percentiles"][number])
        value = scale.update(x)
        assert near(value.reshape(1), given[f"{count}/value"][number])
        assert near(x / value, given[f"{count}/scaled"][number])


def test_the_functions_take_what_numpy_reads() -> None:
    """Arrays straight from the file, with `config` parsed, and nothing else."""
    taken = partial(np.load, FOLDER / "model.npz", allow_pickle=False)
    with taken() as file:
        every = dict(file)
    found = tdmpc2.model(json.loads(str(every["config"])), every_parameter(every), every)
    assert np.array_equal(found["z"], ours("model")["z"])


def every_parameter(every: Arrays) -> Arrays:
    return {name: value for name, value in every.items() if name.startswith("param/")}
