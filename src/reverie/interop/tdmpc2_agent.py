"""A TD-MPC2 of ours with the sizes of given parameters and the numbers of a published configuration."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from reverie.components.controllers.action_search import GaussianSearch
from reverie.components.controllers.mppi import Mppi
from reverie.components.controllers.policy_prior import GaussianPrior
from reverie.components.controllers.q_ensemble import QEnsemble
from reverie.components.controllers.return_scale import RunningRange
from reverie.components.controllers.target_networks import TargetNetworks
from reverie.components.networks.latent_encoder import LatentEncoder, PixelLatent, VectorLatent
from reverie.components.networks.latent_heads import LatentDynamics, RewardHead, TerminationHead
from reverie.components.networks.normed import NormedEnsemble, NormedMlp
from reverie.components.networks.numbers import TwoHotForm
from reverie.interop.links import Named
from reverie.interop.tdmpc2_settings import Settings
from reverie.runtime.adam import Adam
from reverie.runtime.rng import RandomStreams
from reverie.types import ReverieError, Space, Spaces
from reverie.workflows.context import WorkflowContext, WorldModelComponents
from reverie.workflows.controllers import ControllerManager
from reverie.workflows.tdmpc import Tdmpc
from reverie.workflows.tdmpc_config import Discount, TdmpcConfig

CPU = torch.device("cpu")


class ShownAdam(Adam):
    """Keeps the gradients of its last step for whoever compares them."""

    def gradients(self, loss: torch.Tensor) -> list[torch.Tensor]:
        self.last_gradients = dict(zip(self._names, found := super().gradients(loss), strict=True))
        return found


def workflow_of(settings: Settings, params: Named) -> Tdmpc:
    """Initialised, with weights of its own: the given ones are still to be loaded."""
    if any(name.startswith("_encoder.rgb") for name in params):
        raise ReverieError("updates from pictures draw random shifts that were not given: compare those from states.")
    if settings.episodic != any(name.startswith("_termination.") for name in params):
        raise ReverieError("`episodic` and the given parameters disagree on whether there is a `_termination` network.")
    obs_dim, action_dim = params["_encoder.state.0.weight"].shape[1], params["_pi.0.weight"].shape[1]
    latent_dim, action_dim = action_dim, params["_dynamics.0.weight"].shape[1] - action_dim
    _check_sizes(settings, params, obs_dim=obs_dim, action_dim=action_dim, latent_dim=latent_dim)
    space = Space(shape=(action_dim,), dtype="float32")
    obs = {"obs": Space(shape=(obs_dim,), dtype="float32")}
    workflow = Tdmpc(_numbers(settings))
    workflow.initialize(
        WorkflowContext(
            config={},
            device=CPU,
            spaces=Spaces(obs=obs, action=space),
            train_env=None,
            components=WorldModelComponents(_components(settings, params, obs, latent_dim, action_dim)),
            controllers=ControllerManager(_controllers(settings, params, space, latent_dim)),
            optimizers={
                "model": partial(_adam(settings), epsilon=1e-8, rate_scales={"encoder": settings["enc_lr_scale"]}),
                "policy": partial(_adam(settings), epsilon=1e-5),
            },
            rng=RandomStreams(0, device=CPU),
        )
    )
    return workflow


def _numbers(settings: Settings) -> TdmpcConfig:
    return TdmpcConfig(
        loss_weights={name: settings[f"{name}_coef"] for name in ("consistency", "reward", "value", "termination")},
        episode_length=settings.integer("episode_length"),
        discount=Discount(
            parts=settings["discount_denom"], low=settings["discount_min"], high=settings["discount_max"]
        ),
        episodic=settings.episodic,
        rho=settings["rho"],
        entropy_scale=settings["entropy_coef"],
    )


def _adam(settings: Settings) -> Any:
    return partial(ShownAdam, learning_rate=settings["lr"], clip=settings["grad_clip_norm"])


def _components(
    settings: Settings, params: Named, obs: dict[str, Space], latent_dim: int, action_dim: int
) -> dict[str, Any]:
    simnorm, dims = settings.integer("simnorm_dim"), {"latent_dim": latent_dim, "action_dim": action_dim}
    return {
        "encoder": LatentEncoder(
            spaces=obs,
            latent_dim=latent_dim,
            vectors=partial(VectorLatent, network=_network(params, "_encoder.state", simnorm_dim=simnorm)),
            images=PixelLatent,
        ),
        "dynamics": LatentDynamics(network=_network(params, "_dynamics", simnorm_dim=simnorm), **dims),
        "reward_head": RewardHead(network=_network(params, "_reward"), form=_form(settings), **dims),
        "termination_head": TerminationHead(
            latent_dim=latent_dim,
            is_learned=settings.episodic,
            network=_network(params, "_termination") if settings.episodic else NormedMlp,
        ),
        "return_scale": RunningRange(rate=settings["tau"]),
        "target": TargetNetworks(of=["critic"], rate=settings["tau"]),
    }


def _controllers(settings: Settings, params: Named, space: Space, latent_dim: int) -> dict[str, Any]:
    members, units, _ = params["_Qs.params.0.weight"].shape
    ensemble = partial(NormedEnsemble, members=members, layers=_layers(params, "_Qs.params"), units=units)
    return {
        "policy": GaussianPrior(
            space=space,
            latent_dim=latent_dim,
            network=_network(params, "_pi"),
            min_log_std=settings["log_std_min"],
            max_log_std=settings["log_std_max"],
        ),
        "critic": QEnsemble(latent_dim=latent_dim, action_dim=space.dim, form=_form(settings), network=ensemble),
        "planner": planner(settings, elites=2),
    }


def planner(settings: Settings, *, elites: int) -> Mppi:
    """One that is always given its noise, which says how many plans there are, and how often they are improved."""
    search = GaussianSearch(min_std=settings["min_std"], max_std=settings["max_std"])
    samples = max(elites, 2)
    return Mppi(
        search=search,
        horizon=settings.integer("horizon"),
        samples=samples,
        proposals=0,
        elites=elites,
        temperature=settings["temperature"],
    )


def _form(settings: Settings) -> TwoHotForm:
    return TwoHotForm(bins=settings.integer("num_bins"), low=settings["vmin"], high=settings["vmax"])


def _network(params: Named, name: str, *, simnorm_dim: int | None = None) -> Any:
    units = params[f"{name}.0.weight"].shape[0]
    return partial(NormedMlp, layers=_layers(params, name), units=units, simnorm_dim=simnorm_dim)


def _layers(params: Named, name: str) -> int:
    """Before the last one."""
    count = 0
    while f"{name}.{count}.weight" in params:
        count += 1
    if count < 2:
        raise ReverieError(f"the parameter {name}.{count}.weight is missing.")
    return count - 1


def _check_sizes(settings: Settings, params: Named, **dims: int) -> None:
    settings.check(
        **dims,
        enc_dim=params["_encoder.state.0.weight"].shape[0],
        mlp_dim=params["_dynamics.0.weight"].shape[0],
        num_q=params["_Qs.params.0.weight"].shape[0],
        num_bins=params["_reward.2.weight"].shape[0],
    )
    layers = _layers(params, "_encoder.state")
    if layers > 1:  # the published code makes one layer of 0, 1 and 2
        settings.check(num_enc_layers=layers + 1)
