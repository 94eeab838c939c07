"""Which of our tensors the published DreamerV3 code calls what."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import nn

from reverie.components.controllers.critic import Critic
from reverie.components.controllers.return_scale import ReturnScale
from reverie.components.networks.actions import ActionHead, DiscreteOutput, NormalOutput
from reverie.components.networks.heads import BinaryHead, ScalarHead, TwoHotHead
from reverie.components.networks.images import ImageDecoder, ImageEncoder
from reverie.components.networks.layers import BlockLinear, NormSilu
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.components.representation_learners.rssm import Rssm
from reverie.interop.dreamer_v3_actions import JointOutput
from reverie.interop.dreamer_v3_outputs import DistanceHead
from reverie.interop.links import Link, block, convolution, dense, network, norm, of_kind


def encoder_links(encoder: ObservationEncoder) -> list[Link]:
    links: list[Link] = []
    if encoder.vectors is not None:
        vectors = of_kind(encoder.vectors, VectorEncoder)
        links += network(vectors.mlp, linears="enc/mlp{}", norms="enc/mlp{}norm")
    if encoder.images is not None:
        images = of_kind(encoder.images, ImageEncoder)
        stages = zip(images.convolutions, images.norms, strict=True)
        for index, (layer, its_norm) in enumerate(stages):
            links += _convolution_and_norm(f"enc/cnn{index}", layer, its_norm)
    return links


def rssm_links(rssm: Rssm) -> list[Link]:
    links: list[Link] = []
    for index, mlp in enumerate((rssm.read_deter, rssm.read_stoch, rssm.read_action)):
        links += network(mlp, linears=f"dyn/dynin{index}", norms=f"dyn/dynin{index}norm")
    for index, (layer, its_norm) in enumerate(zip(rssm.dynamics, rssm.dynamics_norms, strict=True)):
        assert isinstance(layer, BlockLinear)
        assert isinstance(its_norm, NormSilu)
        links += [*block(f"dyn/dynhid{index}", layer), *norm(f"dyn/dynhid{index}norm", its_norm)]
    links += block("dyn/dyngru", rssm.gates)
    links += network(rssm.prior_mlp, linears="dyn/prior{}", norms="dyn/prior{}norm")
    links += dense("dyn/priorlogit", rssm.prior_output)
    links += network(rssm.posterior_mlp, linears="dyn/obs{}", norms="dyn/obs{}norm")
    return links + dense("dyn/obslogit", rssm.posterior_output)


def decoder_links(decoder: ObservationDecoder, *, image_keys: Sequence[str] | None = None) -> list[Link]:
    """``image_keys``: the order in which the other code joins the pictures' channels; sorted when it is None."""
    links: list[Link] = []
    if decoder.vectors is not None:
        links += _vector_decoder(of_kind(decoder.vectors, VectorDecoder))
    if decoder.images is not None:
        links += _image_decoder(of_kind(decoder.images, ImageDecoder), image_keys)
    return links


def actor_links(actor: ActionHead, *, action_key: str = "action") -> list[Link]:
    """``action_key``: what the other code calls the action, unless the actor has several that are named."""
    links = network(actor.mlp, linears="pol/mlp/linear{}", norms="pol/mlp/norm{}")
    output = actor.output
    for key, one in (output.by_key if isinstance(output, JointOutput) else {action_key: output}).items():
        links += _action_output(f"pol/head/{key}", one)
    return links


def _action_output(name: str, output: object) -> list[Link]:
    if isinstance(output, DiscreteOutput):
        return dense(f"{name}/logits", output.logits)
    normal = of_kind(output, NormalOutput)
    return [*dense(f"{name}/mean", normal.mean), *dense(f"{name}/stddev", normal.stddev)]


def scalar_links(name: str, head: ScalarHead | None) -> list[Link]:
    if isinstance(head, DistanceHead):
        return _head(name, head) + dense(f"{name}/head/pred", head.output)
    two_hot = of_kind(head, TwoHotHead)
    return _head(name, two_hot) + dense(f"{name}/head/logits", two_hot.output)


def continue_links(head: BinaryHead) -> list[Link]:
    return _head("con", head) + dense("con/head/logit", head.output)


def memory_links(critic: Critic, scale: ReturnScale) -> list[Link]:
    """What an update changes without a gradient."""
    low, high = Link(name="retnorm/lo/value", tensor=scale.low), Link(name="retnorm/hi/value", tensor=scale.high)
    return [*scalar_links("slowval", critic.slow), low, high]


def _head(name: str, head: TwoHotHead | BinaryHead | DistanceHead) -> list[Link]:
    return network(head.mlp, linears=f"{name}/mlp/linear{{}}", norms=f"{name}/mlp/norm{{}}")


def _vector_decoder(decoder: VectorDecoder) -> list[Link]:
    links = network(decoder.mlp, linears="dec/mlp/linear{}", norms="dec/mlp/norm{}")
    for (key, space), layer in zip(decoder.spaces.items(), decoder.outputs, strict=True):
        assert isinstance(layer, nn.Linear)
        links += dense(f"dec/vec/{key}/{'logits' if space.is_discrete else 'pred'}", layer)
    return links


def _image_decoder(decoder: ImageDecoder, image_keys: Sequence[str] | None) -> list[Link]:
    links = block("dec/sp0", decoder.from_deter)
    links += network(decoder.from_stoch, linears="dec/sp1", norms="dec/sp1norm")
    links += [*dense("dec/sp2", decoder.from_stoch_output), *norm("dec/spnorm", decoder.map_norm)]
    # There the convolutions count down to the picture.
    numbers = reversed(range(len(decoder.convolutions)))
    for index, layer, its_norm in zip(numbers, decoder.convolutions, decoder.norms, strict=True):
        links += _convolution_and_norm(f"dec/conv{index}", layer, its_norm)
    return links + convolution("dec/imgout", decoder.output, channels=_channel_order(decoder.channels, image_keys))


def _channel_order(channels: dict[str, int], image_keys: Sequence[str] | None) -> list[int] | None:
    if image_keys is None:
        return None
    ends = np.cumsum(list(channels.values()))
    places = {key: range(int(end) - num, int(end)) for (key, num), end in zip(channels.items(), ends, strict=True)}
    return [index for key in image_keys for index in places[key]]


def _convolution_and_norm(name: str, layer: nn.Module, its_norm: nn.Module) -> list[Link]:
    assert isinstance(layer, nn.Conv2d)
    assert isinstance(its_norm, NormSilu)
    return [*convolution(name, layer), *norm(f"{name}norm", its_norm)]
