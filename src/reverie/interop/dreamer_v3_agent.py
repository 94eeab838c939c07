"""A DreamerV3 of ours with the sizes of given parameters and the numbers of a published configuration."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, TypedDict

import torch

from reverie.components.controllers.actor_objective import Reinforce
from reverie.components.controllers.credit import ArrivalCredit
from reverie.components.controllers.critic import Critic
from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.actions import ActionHead
from reverie.components.networks.heads import BinaryHead, ScalarHead, TwoHotHead
from reverie.components.networks.images import ImageDecoder, ImageEncoder
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.components.representation_learners.latents import CategoricalLatents
from reverie.components.representation_learners.rssm import Rssm
from reverie.components.return_computers.td_lambda import TdLambda
from reverie.interop.dreamer_v3_actions import JointOutput, fixed_noise
from reverie.interop.dreamer_v3_inputs import Given
from reverie.interop.dreamer_v3_norms import formed
from reverie.interop.dreamer_v3_outputs import DistanceHead, PlainVectorDecoder
from reverie.interop.dreamer_v3_sizes import decoder_channels, encoder_channels
from reverie.interop.links import Arrays
from reverie.runtime.optimizer import LaProp
from reverie.runtime.rng import RandomStreams
from reverie.types import Spaces
from reverie.workflows.context import WorkflowContext, WorldModelComponents
from reverie.workflows.controllers import ControllerManager
from reverie.workflows.dreamer import Dreamer
from reverie.workflows.dreamer_config import GRAD_HEADS, DreamerConfig

CPU = torch.device("cpu")


class HeadSizes(TypedDict):
    feature_dim: int
    layers: int
    units: int


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
            spaces=Spaces(obs=given.obs, action=given.actions.space),
            train_env=None,
            components=WorldModelComponents(components),
            controllers=ControllerManager(_controllers(given, dims)),
            optimizers={"model": partial(LaProp, **settings.optimizer)},
            rng=RandomStreams(0, device=CPU),
        )
    )
    workflow.draw_the_most_likely()
    return workflow


def _components(given: Given, params: Arrays) -> dict[str, Any]:
    settings, encoder = given.settings, _encoder(given, params)
    rssm = _rssm(given, token_dim=encoder.dims()["token_dim"])
    dims, forms = rssm.dims(), settings.forms
    return {
        "encoder": formed(encoder, forms["enc"]),
        "representation_learner": formed(rssm, forms["dyn"]),
        "decoder": formed(_decoder(given, params, dims), forms["dec"]),
        "reward_head": _scalar_head("rew", given, dims),
        "continue_head": formed(BinaryHead(**_head("con", given, dims)), forms["con"]),
        "return_computer": TdLambda(lambda_=settings.imagined_lambda),
        "return_scale": ReturnScale(
            low_quantile=settings.low_quantile, high_quantile=settings.high_quantile, rate=settings.scale_rate
        ),
    }


def _controllers(given: Given, dims: Mapping[str, int]) -> dict[str, Any]:
    return {
        "actor": formed(_actor(given, _head("pol", given, dims)), given.settings.forms["pol"]),
        "critic": Critic(head=_scalar_head("val", given, dims), slow_rate=given.settings.slow_rate),
        "objective": Reinforce(),
        "credit": ArrivalCredit(),
    }


def _head(part: str, given: Given, dims: Mapping[str, int]) -> HeadSizes:
    return {
        "feature_dim": dims["feature_dim"],
        "layers": given.size(part, "layers"),
        "units": given.size(part, "units"),
    }


def _scalar_head(part: str, given: Given, dims: Mapping[str, int]) -> ScalarHead:
    sizes, output = _head(part, given, dims), given.settings.outputs[part]
    if output != "symexp_twohot":
        return formed(DistanceHead(**sizes, form=output), given.settings.forms[part])
    return formed(TwoHotHead(**sizes, bins=given.size(part, "bins")), given.settings.forms[part])


def _encoder(given: Given, params: Arrays) -> ObservationEncoder:
    """Sizes of parts that are not there are never read; those of parts that should be there are missed by name."""
    return ObservationEncoder(
        spaces=given.obs,
        vectors=lambda **chosen: VectorEncoder(
            layers=given.size("enc", "layers"),
            units=given.size("enc", "units"),
            has_symlog=given.settings.reads_symlog,
            **chosen,
        ),
        images=lambda **chosen: ImageEncoder(
            depth=1, multipliers=encoder_channels(params), kernel=given.size("enc", "kernel"), **chosen
        ),
    )


def _rssm(given: Given, *, token_dim: int) -> Rssm:
    size = partial(given.size, "dyn")
    latents = CategoricalLatents(stoch=size("stoch"), classes=size("classes"), unimix=given.settings.latent_unimix)
    return Rssm(
        token_dim=token_dim,
        action_dim=given.actions.space.dim,
        deter=size("deter"),
        hidden=size("hidden"),
        latents=latents,
        blocks=size("blocks"),
        dynamics_layers=size("dynlayers"),
        prior_layers=size("imglayers"),
        posterior_layers=size("obslayers"),
    )


def _decoder(given: Given, params: Arrays, dims: Mapping[str, int]) -> ObservationDecoder:
    size, has_symlog = partial(given.size, "dec"), given.settings.predicts_symlog
    vectors = VectorDecoder if has_symlog else PlainVectorDecoder
    return ObservationDecoder(
        spaces=given.obs,
        deter_dim=dims["deter_dim"],
        stoch_dim=dims["stoch_dim"],
        vectors=lambda **chosen: vectors(layers=size("layers"), units=size("units"), has_symlog=has_symlog, **chosen),
        images=lambda **chosen: ImageDecoder(
            units=size("units"),
            depth=1,
            multipliers=decoder_channels(params),
            blocks=size("bspace"),
            kernel=size("kernel"),
            **chosen,
        ),
    )


def _actor(given: Given, sizes: HeadSizes) -> ActionHead:
    settings, joint = given.settings, given.actions
    output = partial(
        JointOutput,
        joint=joint,
        noise=fixed_noise(given.arrays, joint),
        form=settings.outputs["pol"],
        min_stddev=settings.min_stddev,
        max_stddev=settings.max_stddev,
    )
    return ActionHead(space=joint.space, **sizes, continuous=output)
