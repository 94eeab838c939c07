"""Which of our tensors is called what in the published TD-MPC2 code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from torch import Tensor, nn

from reverie.components.controllers.policy_prior import GaussianPrior
from reverie.components.controllers.q_ensemble import QEnsemble
from reverie.components.networks.latent_encoder import LatentEncoder, PixelLatent, VectorLatent
from reverie.components.networks.latent_heads import LatentDynamics, RewardHead, TerminationHead
from reverie.components.networks.normed import NormedEnsemble, NormedMlp
from reverie.interop.links import Link, of_kind
from reverie.types import ReverieError

if TYPE_CHECKING:
    from reverie.workflows.tdmpc import Tdmpc

_FIRST_CONVOLUTION = 2
"""Two modules without parameters stand before it there."""


def encoder_of(workflow: Tdmpc) -> LatentEncoder:
    return of_kind(workflow.modules()["encoder"], LatentEncoder)


def learning_links(workflow: Tdmpc) -> list[Link]:
    """All that has gradients."""
    modules = workflow.modules()
    links = _encoder(encoder_of(workflow))
    links += _network("_dynamics", of_kind(modules["dynamics"], LatentDynamics).network)
    links += _network("_reward", of_kind(modules["reward_head"], RewardHead).network)
    ends = of_kind(modules["termination_head"], TerminationHead).network
    links += [] if ends is None else _network("_termination", ends)
    links += _network("_pi", of_kind(modules["policy"], GaussianPrior).network)
    return links + _ensemble("_Qs.params", of_kind(modules["critic"], QEnsemble))


def target_links(workflow: Tdmpc) -> list[Link]:
    copies = workflow.modules()["target"].get_submodule("copies")
    critics = dict(copies.named_children())
    if critics.keys() != {"critic"}:
        raise ReverieError("published TD-MPC2 weights need `components.target.of` to be [critic].")
    return _ensemble("_target_Qs_params", of_kind(critics["critic"], QEnsemble))


def _encoder(encoder: LatentEncoder) -> list[Link]:
    links: list[Link] = []
    if encoder.vectors is not None:
        links += _network("_encoder.state", of_kind(encoder.vectors, VectorLatent).network)
    if encoder.images is not None:
        images = of_kind(encoder.images, PixelLatent)
        if list(images.output.parameters()):
            raise ReverieError("published TD-MPC2 weights need a latent of the size that the convolutions end in.")
        for index, layer in enumerate(images.convolutions):
            links += _named(f"_encoder.rgb.{index + _FIRST_CONVOLUTION}", dict(layer.named_parameters()))
    return links


def _network(name: str, network: nn.Module) -> list[Link]:
    return _named(name, dict(of_kind(network, NormedMlp).named_parameters()))


def _ensemble(name: str, critic: QEnsemble) -> list[Link]:
    return _named(name, dict(of_kind(critic.network, NormedEnsemble).named_parameters()))


def _named(name: str, tensors: Mapping[str, Tensor]) -> list[Link]:
    """Our modules count and call their layers as theirs do."""
    return [Link(name=f"{name}.{part}", tensor=tensor) for part, tensor in tensors.items()]
