"""A DreamerV3 of ours with the sizes of given parameters and the numbers of a published configuration."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import Any, TypedDict

import numpy as np
import torch
from torch import Tensor

from reverie.components.controllers.actor_objective import Reinforce
from reverie.components.controllers.credit import ArrivalCredit
from reverie.components.controllers.critic import Critic
from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.actions import ActionDistribution, ActionHead, NormalOutput
from reverie.components.networks.distributions import Normal
from reverie.components.networks.heads import BinaryHead, TwoHotHead
from reverie.components.networks.images import ImageDecoder, ImageEncoder
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.components.representation_learners.latents import CategoricalLatents
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.return_computers.td_lambda import TdLambda
from reverie.interop.dreamer_v3_inputs import Given
from reverie.interop.links import Arrays
from reverie.runtime.optimizer import LaProp
from reverie.runtime.rng import RandomStreams
from reverie.types import ReverieError, Spaces
from reverie.workflows.context import WorkflowContext, WorldModelComponents
from reverie.workflows.controllers import ControllerManager
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_config import GRAD_HEADS, DreamerConfig

CPU = torch.device("cpu")


class HeadSizes(TypedDict):
    feature_dim: int
    layers: int
    units: int


class FixedNoiseHead(ActionHead):
    """A continuous actor whose samples are mean + stddev * noise, always with the same noise."""

    def __init__(self, noise: Tensor, **settings: Any) -> None:
        super().__init__(**settings)
        self._noise = noise

    def forward(self, feature: Tensor) -> ActionDistribution:
        chosen = super().forward(feature)
        assert isinstance(chosen, Normal)
        return FixedNoiseNormal(chosen.mean, chosen.stddev, self._noise)


class FixedNoiseNormal(Normal):
    def __init__(self, mean: Tensor, stddev: Tensor, noise: Tensor) -> None:
        super().__init__(mean, stddev)
        self._noise = noise

    def drawn(self, noise: Tensor | None) -> Tensor:
        """Whatever ``noise`` is."""
        return (self.mean + self.stddev * self._noise).detach()


def workflow_of(given: Given, params: Arrays) -> Dreamer:
    """Initialised, with weights of its own: the given ones are still to be loaded."""
    settings = given.settings
    workflow = Dreamer(
        DreamerConfig(
            loss_weights=settings.loss_weights,
            horizon=settings.horizon,
            discount_horizon=settings.discount_horizon,
            free_nats=settings.free_nats,
            entropy_scale=settings.entropy_scale,
            slow_regularizer=settings.slow_regularizer,
            replay_lambda=settings.replay_lambda,
            grad_heads=tuple(name for name in GRAD_HEADS if name not in settings.stopped),
        )
    )
    components = _components(given, params)
    dims = components["representation_learner"].dims()
    workflow.initialize(
        WorkflowContext(
            config={},
            device=CPU,
            spaces=Spaces(obs=given.obs, action=given.action),
            train_env=None,
            components=WorldModelComponents(components),
            controllers=ControllerManager(_controllers(given, params, dims)),
            optimizers={"model": partial(LaProp, **settings.optimizer)},
            rng=RandomStreams(0, device=CPU),
        )
    )
    workflow.draw_the_most_likely()
    return workflow


def _components(given: Given, params: Arrays) -> dict[str, Any]:
    settings, rssm = given.settings, _rssm(given, params)
    dims = rssm.dims()
    return {
        "encoder": _encoder(given, params),
        "representation_learner": rssm,
        "decoder": _decoder(given, params, dims),
        "reward_head": TwoHotHead(**_head("rew", params, dims), bins=params["rew/head/logits/bias"].size),
        "continue_head": BinaryHead(**_head("con", params, dims)),
        "return_computer": TdLambda(lambda_=settings.imagined_lambda),
        "return_scale": ReturnScale(
            low_quantile=settings.low_quantile, high_quantile=settings.high_quantile, rate=settings.scale_rate
        ),
    }


def _controllers(given: Given, params: Arrays, dims: Mapping[str, int]) -> dict[str, Any]:
    bins, rate = params["val/head/logits/bias"].size, given.settings.slow_rate
    return {
        "actor": _actor(given, _head("pol", params, dims)),
        "critic": Critic(head=TwoHotHead(**_head("val", params, dims), bins=bins), slow_rate=rate),
        "objective": Reinforce(),
        "credit": ArrivalCredit(),
    }


def _count(pattern: str, params: Arrays) -> int:
    return sum(re.fullmatch(pattern, name) is not None for name in params)


def _size(name: str, params: Arrays, default: int = 1) -> int:
    return params[name].size if name in params else default


def _head(name: str, params: Arrays, dims: Mapping[str, int]) -> HeadSizes:
    return {
        "feature_dim": dims["feature_dim"],
        "layers": _count(rf"{name}/mlp/linear\d+/bias", params),
        "units": params[f"{name}/mlp/linear0/bias"].size,
    }


def _encoder(given: Given, params: Arrays) -> ObservationEncoder:
    kernel = params["enc/cnn0/kernel"].shape[0] if "enc/cnn0/kernel" in params else 5
    return ObservationEncoder(
        spaces=given.obs,
        vectors=partial(
            VectorEncoder,
            layers=max(1, _count(r"enc/mlp\d+/bias", params)),
            units=_size("enc/mlp0/bias", params),
        ),
        images=partial(ImageEncoder, depth=_size("enc/cnn0/bias", params, 2) // 2, kernel=kernel),
    )


def _rssm(given: Given, params: Arrays) -> Rssm:
    stoch, classes = given.latent
    deter, hidden = params["dyn/dynin0/kernel"].shape
    return Rssm(
        token_dim=params["dyn/obs0/kernel"].shape[0] - deter,
        action_dim=params["dyn/dynin2/kernel"].shape[0],
        deter=deter,
        hidden=hidden,
        latents=CategoricalLatents(stoch=stoch, classes=classes, unimix=given.settings.latent_unimix),
        blocks=params["dyn/dynhid0/kernel"].shape[0],
        dynamics_layers=_count(r"dyn/dynhid\d+/bias", params),
        prior_layers=_count(r"dyn/prior\d+/bias", params),
        posterior_layers=_count(r"dyn/obs\d+/bias", params),
    )


def _decoder(given: Given, params: Arrays, dims: Mapping[str, int]) -> ObservationDecoder:
    kernel = params["dec/imgout/kernel"].shape[0] if "dec/imgout/kernel" in params else 5
    blocks = params["dec/sp0/kernel"].shape[0] if "dec/sp0/kernel" in params else 8
    units = _size("dec/mlp/linear0/bias", params, _size("dec/sp1/bias", params, 2) // 2)
    depth = _size("dec/conv0/bias", params, 2) // 2
    return ObservationDecoder(
        spaces=given.obs,
        deter_dim=dims["deter_dim"],
        stoch_dim=dims["stoch_dim"],
        vectors=partial(VectorDecoder, layers=max(1, _count(r"dec/mlp/linear\d+/bias", params)), units=units),
        images=partial(ImageDecoder, units=units, depth=depth, blocks=blocks, kernel=kernel),
    )


def _actor(given: Given, head: HeadSizes) -> ActionHead:
    if given.action.is_discrete:  # the reference ignores its unimix for discrete actions
        return ActionHead(space=given.action, **head)
    if "sample_eps" not in given.arrays:
        raise ReverieError("a continuous policy needs the array sample_eps: samples are mean + stddev * sample_eps.")
    noise = torch.from_numpy(given.arrays["sample_eps"].astype(np.float32))
    output = partial(NormalOutput, min_stddev=given.settings.min_stddev, max_stddev=given.settings.max_stddev)
    return FixedNoiseHead(noise, space=given.action, **head, continuous=output)
