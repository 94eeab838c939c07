"""The sizes of given parameters, under the names that a published configuration has for them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from reverie.interop.dreamer_v3_config import PublishedConfig
from reverie.interop.dreamer_v3_settings import SECTIONS
from reverie.interop.links import Arrays
from reverie.types import ReverieError

Sizes = dict[str, int]

HEADS = ("rew", "con", "pol", "val")


def sizes_of(params: Arrays, *, latent: tuple[int, int]) -> Sizes:
    """``latent``: how many variables, and classes of each. Networks that are not there have no sizes."""
    found = _rssm(params, latent) | _encoder(params) | _decoder(params)
    for part in HEADS:
        found |= _head(part, params)
    return found


def check_sizes(config: PublishedConfig, sizes: Sizes, params: Arrays) -> None:
    """What the configuration says of them must be true: else it belongs to other parameters."""
    for name, size in sizes.items():
        if config.get(name, size) != size:
            raise config.refusal(name, f"the given parameters have {size}")
    for part, channels in (("enc", encoder_channels(params)), ("dec", decoder_channels(params))):
        section = SECTIONS[part]
        depth, multipliers = config.get(f"{section}.depth"), config.get(f"{section}.mults")
        if channels and multipliers and len(multipliers) != len(channels):
            raise config.refusal(f"{section}.mults", f"the given parameters have {len(channels)} stages")
        if channels and depth and multipliers and [depth * factor for factor in multipliers] != list(channels):
            raise config.refusal(f"{section}.mults", f"at depth {depth} the given parameters have {list(channels)}")


def encoder_channels(params: Arrays) -> Sequence[int]:
    """Of each stage from the picture on; empty without pictures."""
    return [params[f"enc/cnn{stage}/kernel"].shape[-1] for stage in range(_count(r"enc/cnn\d+/kernel", params))]


def decoder_channels(params: Arrays) -> Sequence[int]:
    """In the same order: the decoder's numbers count down to the picture."""
    if "dec/imgout/kernel" not in params:
        return []
    stages = _count(r"dec/conv\d+/kernel", params)
    # What a convolution reads are the channels of the stage above it.
    names = ["dec/imgout/kernel", *[f"dec/conv{stage}/kernel" for stage in range(stages)]]
    return [params[name].shape[-2] for name in names]


def _rssm(params: Arrays, latent: tuple[int, int]) -> Sizes:
    deter, hidden = params["dyn/dynin0/kernel"].shape
    return {
        "agent.dyn.rssm.deter": deter,
        "agent.dyn.rssm.hidden": hidden,
        "agent.dyn.rssm.stoch": latent[0],
        "agent.dyn.rssm.classes": latent[1],
        "agent.dyn.rssm.blocks": params["dyn/dynhid0/kernel"].shape[0],
        "agent.dyn.rssm.dynlayers": _count(r"dyn/dynhid\d+/kernel", params),
        "agent.dyn.rssm.imglayers": _count(r"dyn/prior\d+/kernel", params),
        "agent.dyn.rssm.obslayers": _count(r"dyn/obs\d+/kernel", params),
    }


def _encoder(params: Arrays) -> Sizes:
    section, found = SECTIONS["enc"], {}
    if "enc/mlp0/kernel" in params:
        found[f"{section}.layers"] = _count(r"enc/mlp\d+/kernel", params)
        found[f"{section}.units"] = params["enc/mlp0/kernel"].shape[-1]
    if "enc/cnn0/kernel" in params:
        found[f"{section}.kernel"] = params["enc/cnn0/kernel"].shape[0]
    return found


def _decoder(params: Arrays) -> Sizes:
    section, found = SECTIONS["dec"], {}
    if "dec/imgout/kernel" in params:
        found[f"{section}.kernel"] = params["dec/imgout/kernel"].shape[0]
        found[f"{section}.bspace"] = params["dec/sp0/kernel"].shape[0]
        found[f"{section}.units"] = params["dec/sp1/kernel"].shape[-1] // 2
    if "dec/mlp/linear0/kernel" in params:
        found[f"{section}.layers"] = _count(r"dec/mlp/linear\d+/kernel", params)
        found[f"{section}.units"] = params["dec/mlp/linear0/kernel"].shape[-1]
    return found


def _head(part: str, params: Arrays) -> Sizes:
    section = SECTIONS[part]
    layers = _count(rf"{part}/mlp/linear\d+/kernel", params)
    if not layers:
        raise ReverieError(f"the given parameters have no {part}/mlp/linear0: a head needs at least one layer here.")
    found = {f"{section}.layers": layers, f"{section}.units": params[f"{part}/mlp/linear0/kernel"].shape[-1]}
    logits = f"{part}/head/logits/kernel"
    return found | ({f"{section}.bins": params[logits].shape[-1]} if logits in params else {})


def _count(pattern: str, params: Arrays) -> int:
    return sum(re.fullmatch(pattern, name) is not None for name in params)
