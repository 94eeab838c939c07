"""The networks of a plan as layers for its kernels: copies of weights, and the norm in front of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from reverie.components.controllers.latent_model import LatentModel
from reverie.components.controllers.policy_prior import GaussianPrior
from reverie.components.networks.copied_parameters import CopiedParameters
from reverie.components.networks.normed import Mish, NormedEnsemble, NormedLinear, NormedLinears, NormedMlp, SimNorm
from reverie.components.networks.numbers import TwoHotForm


class Norm(NamedTuple):
    """Of G networks side by side: [G, K] each."""

    scale: Tensor
    shift: Tensor


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Of G networks side by side."""

    weight: Tensor
    """[G, N, K], as products read it."""
    action: Tensor | None
    """[G, N, A]: what meets an action beside the K numbers."""
    bias: Tensor
    """[G, N]."""
    norm: Norm | None
    """[G, K] each: of the layer norm in front; None where there is none of these networks."""

    def last(self) -> Layer:
        """That of the last network alone."""
        return Layer(
            weight=self.weight[-1:],
            action=None if self.action is None else self.action[-1:],
            bias=self.bias[-1:],
            norm=None if self.norm is None else Norm(*(part[-1:] for part in self.norm)),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanLayers:
    copies: CopiedParameters
    shared: list[Layer]
    """Of reward and dynamics, side by side, without the last."""
    reward: Layer
    dynamics: Layer
    latent: Norm
    """In front of the SimNorm of every latent that the dynamics lead to."""
    simnorm_dim: int
    """Neighbours in a latent that sum up to 1."""
    policy: list[Layer]
    critic: list[Layer]


_GROUPS = (1, 2, 4, 8, 16, 32, 64)
"""Neighbours in a SimNorm that lie inside the pieces that kernels read."""


def can_be_layers(model: LatentModel) -> bool:
    """Whether these are the networks of TD-MPC2 for one task whose episodes do not end before their time."""
    dynamics, reward = _linears(model.dynamics.network), _linears(model.reward_head.network)
    policy = _linears(model.prior.network)
    if not (dynamics and reward and policy) or not isinstance(model.critic.network, NormedEnsemble):
        return False
    last = dynamics[-1]
    return (
        isinstance(last, NormedLinear)
        and isinstance(last.act, SimNorm)
        and last.act.dim in _GROUPS
        and last.out_features == policy[0].in_features  # or the latent also says which task is played
        and [layer.weight.shape for layer in dynamics[:-1]] == [layer.weight.shape for layer in reward[:-1]]
        and type(model.prior) is GaussianPrior
        and isinstance(model.reward_head.form, TwoHotForm)
        and isinstance(model.critic.form, TwoHotForm)
        and torch.equal(model.reward_head.form.bins, model.critic.form.bins)  # one table serves both
        and isinstance(model.discount, float)
        and not model.termination_head.is_learned
    )


def plan_layers(model: LatentModel, dtype: torch.dtype) -> PlanLayers:
    """Of a model that ``can_be_layers``, for products of ``dtype``."""
    dynamics, reward = _linears(model.dynamics.network), _linears(model.reward_head.network)
    last, critic = dynamics[-1], model.critic.network
    assert isinstance(last, NormedLinear)
    assert isinstance(last.act, SimNorm)
    assert isinstance(critic, NormedEnsemble)
    making, dim = _Making(dtype), model.prior.action_dim
    shared = making.stack(list(zip(reward[:-1], dynamics[:-1], strict=True)), action_dim=dim)
    norms = [making.norm([network[-2]]) for network in (reward, dynamics)]
    return PlanLayers(
        copies=making.copies,
        shared=shared,
        reward=making.layer([reward[-1]], norms[0]),
        dynamics=making.layer([last], norms[1]),
        latent=making.norm([last]),
        simnorm_dim=last.act.dim,
        policy=making.stack([(layer,) for layer in _linears(model.prior.network)]),
        critic=making.members(critic, action_dim=dim),
    )


def _linears(network: object) -> list[nn.Linear]:
    """Its layers, each but the last with a norm and Mish behind it; none where it is another network."""
    if not isinstance(network, NormedMlp):
        return []
    layers = [layer for layer in network if isinstance(layer, nn.Linear)]
    is_known = all(isinstance(layer, NormedLinear) and isinstance(layer.act, Mish) for layer in layers[:-1])
    return layers if is_known else []


class _Making:
    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype, self.copies = dtype, CopiedParameters()

    def stack(self, networks: Sequence[Sequence[nn.Linear]], *, action_dim: int = 0) -> list[Layer]:
        """Layers, each of several networks side by side; the first reads an action too."""
        made: list[Layer] = []
        for place, layers in enumerate(networks):
            norm = self.norm(networks[place - 1]) if place else None
            made.append(self.layer(layers, norm, action_dim=0 if place else action_dim))
        return made

    def layer(self, layers: Sequence[nn.Linear], norm: Norm | None, *, action_dim: int = 0) -> Layer:
        weights, inner = [layer.weight for layer in layers], layers[0].in_features - action_dim
        return Layer(
            weight=self.copies.of(weights, self._dtype, slice(0, inner)),
            action=self.copies.of(weights, self._dtype, slice(inner, None)) if action_dim else None,
            bias=self.copies.of([layer.bias for layer in layers]),
            norm=norm,
        )

    def norm(self, layers: Sequence[nn.Linear]) -> Norm:
        """That behind ``layers``."""
        norms = [layer.ln for layer in layers if isinstance(layer, NormedLinear)]
        return Norm(self.copies.of([one.weight for one in norms]), self.copies.of([one.bias for one in norms]))

    def members(self, critic: NormedEnsemble, *, action_dim: int) -> list[Layer]:
        """Those of all members, of which a plan asks two."""
        made: list[Layer] = []
        norm = None
        for layer in critic:
            assert isinstance(layer, NormedLinears)
            inner = layer.weight.shape[-1] - action_dim
            made.append(
                Layer(
                    weight=self.copies.of([layer.weight], self._dtype, slice(0, inner))[0],
                    action=self.copies.of([layer.weight], self._dtype, slice(inner, None))[0] if action_dim else None,
                    bias=layer.bias.detach(),
                    norm=norm,
                )
            )
            norm = None if layer.ln is None else Norm(layer.ln["weight"].detach(), layer.ln["bias"].detach())
            action_dim = 0
        return made
