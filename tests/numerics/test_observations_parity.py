"""Encoder and decoder of mixed observations against the published code; the representation that changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import pytest
import torch
from reference import GRADIENT, arrays, assert_gradients, assert_near, parameters
from small_dreamer import small_dreamer
from torch import Tensor

from reverie.components.networks.distributions import ImageMse, OneHot, SymlogMse
from reverie.components.networks.images import ImageDecoder, ImageEncoder
from reverie.components.networks.observations import ObservationDecoder, ObservationEncoder
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.components.representation_learners.identity import Identity
from reverie.interop.dreamer_v3_names import decoder_links, encoder_links
from reverie.interop.links import load
from reverie.types import ReverieError, Space, Spaces

SPACES = {
    "image": Space(shape=(64, 64, 3), dtype="uint8"),
    "vector": Space(shape=(5,), dtype="float32"),
    "count": Space(shape=(), dtype="int64", classes=4),
}
VECTORS = {key: SPACES[key] for key in ("vector", "count")}


def small_encoder(
    spaces: Mapping[str, Space], keys: Sequence[str] = (".*",), *, layers: int = 1, units: int = 4, depth: int = 2
) -> ObservationEncoder:
    vectors, images = partial(VectorEncoder, layers=layers, units=units), partial(ImageEncoder, depth=depth)
    return ObservationEncoder(spaces=spaces, keys=keys, vectors=vectors, images=images)


def small_decoder(
    spaces: Mapping[str, Space],
    keys: Sequence[str] = (".*",),
    *,
    dims: tuple[int, int],
    layers: int = 1,
    units: int = 4,
    depth: int = 2,
) -> ObservationDecoder:
    return ObservationDecoder(
        spaces=spaces,
        keys=keys,
        deter_dim=dims[0],
        stoch_dim=dims[1],
        vectors=partial(VectorDecoder, layers=layers, units=units),
        images=partial(ImageDecoder, units=units, depth=depth),
    )


def encoder(*keys: str) -> ObservationEncoder:
    """With the parameters of the fixture, as far as the keys need them."""
    made = small_encoder(SPACES, keys, layers=3, units=16, depth=4)
    links = encoder_links(made)
    given = parameters("encoder")
    load(links, {link.name: given[link.name] for link in links})
    return made


def decoder(*keys: str) -> ObservationDecoder:
    made = small_decoder(SPACES, keys, dims=(64, 24), layers=3, units=16, depth=4)
    links = decoder_links(made)
    given = parameters("decoder")
    load(links, {link.name: given[link.name] for link in links})
    return made


def obs(name: str) -> dict[str, Tensor]:
    file = arrays(name)
    return {key: file[f"obs/{key}"].long() if key == "count" else file[f"obs/{key}"] for key in SPACES}


def test_the_whole_encoder_and_its_gradients() -> None:
    made, file = encoder(".*"), arrays("encoder")
    assert {link.name for link in encoder_links(made)} == parameters("encoder").keys()
    tokens = made(obs("encoder"))
    assert_near(tokens, file["tokens"])
    assert made.dims() == {"token_dim": 272}
    assert_gradients((tokens * file["cotangent"]).sum(), encoder_links(made), "encoder")


@pytest.mark.parametrize(
    ("patterns", "keys", "expected"),
    [
        (["image"], ["image"], "tokens_image_only"),
        (["count", "vec.*"], ["count", "vector"], "tokens_vector_only"),
    ],
)
def test_patterns_choose_what_is_encoded(patterns: list[str], keys: list[str], expected: str) -> None:
    made = encoder(*patterns)
    tokens = made({key: obs("encoder")[key] for key in keys})
    assert_near(tokens, arrays("encoder")[expected])
    assert made.dims() == {"token_dim": tokens.shape[-1]}


def test_the_whole_decoder_and_its_gradients() -> None:
    made, file = decoder(".*"), arrays("decoder")
    assert {link.name for link in decoder_links(made)} == parameters("decoder").keys()
    deter, stoch = file["feat/deter"].clone().requires_grad_(), file["feat/stoch"].clone().requires_grad_()
    decoded = made(deter, stoch.flatten(-2))
    image, vector, count = decoded["image"], decoded["vector"], decoded["count"]
    assert isinstance(image, ImageMse)
    assert isinstance(vector, SymlogMse)
    assert isinstance(count, OneHot)
    assert_near(image.mean(), file["pred/image"])
    assert_near(count.logits, file["pred_logits/count"])
    losses = {key: decoded[key].loss(obs("decoder")[key]) for key in SPACES}
    for key, loss in losses.items():
        assert_near(loss, file[f"loss/{key}"], what=key)
    total = torch.stack([loss.mean() for loss in losses.values()]).sum()
    assert_gradients(total, decoder_links(made), "decoder")
    grads = torch.autograd.grad(total, [deter, stoch])
    for name, grad in zip(("deter", "stoch"), grads, strict=True):
        assert_near(grad, file[f"grad_feat/{name}"], GRADIENT, what=name)


def test_patterns_choose_what_is_decoded() -> None:
    file = arrays("decoder")
    decoded = decoder("image")(file["feat/deter"], file["feat/stoch"].flatten(-2))
    assert decoded.keys() == {"image"}
    assert_near(decoded["image"].loss(file["obs/image"]), file["loss/image"])


def test_several_pictures_are_joined_in_the_order_of_their_keys() -> None:
    one, two = Space(shape=(32, 48, 3), dtype="uint8"), Space(shape=(32, 48, 1), dtype="uint8")
    generator = torch.Generator().manual_seed(0)
    seen = {
        "b": torch.randint(256, (2, 32, 48, 1), generator=generator, dtype=torch.uint8),
        "a": torch.randint(256, (2, 32, 48, 3), generator=generator, dtype=torch.uint8),
    }
    made = small_encoder({"b": two, "a": one})
    joined = small_encoder({"all": Space(shape=(32, 48, 4), dtype="uint8")})
    joined.load_state_dict(made.state_dict())
    assert made.dims() == {"token_dim": 2 * 3 * 8}
    assert torch.equal(made(seen), joined({"all": torch.cat([seen["a"], seen["b"]], -1)}))
    decoder = small_decoder({"b": two, "a": one}, dims=(8, 6))
    decoded = decoder(torch.randn(2, 8, generator=generator), torch.randn(2, 6, generator=generator))
    assert {key: tuple(value.mean().shape) for key, value in decoded.items() if isinstance(value, ImageMse)} == {
        "a": (2, 32, 48, 3),
        "b": (2, 32, 48, 1),
    }


def test_multipliers_give_the_channels_and_the_number_of_stages() -> None:
    spaces = {"image": Space(shape=(24, 40, 3), dtype="uint8")}
    reads = ImageEncoder(spaces=spaces, depth=2, multipliers=(1, 3, 4))
    draws = ImageDecoder(spaces=spaces, deter_dim=16, stoch_dim=6, units=4, depth=2, multipliers=(1, 3, 4))
    assert [layer.weight.shape[:2] for layer in reads.convolutions] == [(2, 3), (6, 2), (8, 6)]
    assert [layer.weight.shape[:2] for layer in draws.convolutions] == [(6, 8), (2, 6)]
    assert reads.output_dim == 3 * 5 * 8
    assert reads({"image": torch.zeros(2, 24, 40, 3, dtype=torch.uint8)}).shape == (2, 3 * 5 * 8)
    assert draws(torch.zeros(2, 16), torch.zeros(2, 6))["image"].mean().shape == (2, 24, 40, 3)
    with pytest.raises(ReverieError, match="24x40 must be resized to multiples of 16"):
        ImageEncoder(spaces=spaces, depth=2)
    with pytest.raises(ReverieError, match="multipliers"):
        ImageEncoder(spaces=spaces, depth=2, multipliers=())


def test_the_configuration_may_give_multipliers() -> None:
    parts = [f"+components.{part}.images.multipliers=[1,2,4]" for part in ("encoder", "decoder")]
    spaces = Spaces(obs={"image": Space(shape=(24, 24, 3), dtype="uint8")}, action=SPACES["count"])
    made = small_dreamer(*parts, spaces=spaces).modules()["encoder"]
    assert isinstance(made, ObservationEncoder)
    assert made.dims() == {"token_dim": 3 * 3 * 8}


@pytest.mark.parametrize(
    ("spaces", "keys", "complaint"),
    [
        ({"camera": Space(shape=(60, 64, 3), dtype="uint8")}, [".*"], "60x64.*multiples of 16"),
        (
            {"a": Space(shape=(64, 64, 3), dtype="uint8"), "b": Space(shape=(32, 32, 3), dtype="uint8")},
            [".*"],
            "'a' 64x64, 'b' 32x32",
        ),
        (VECTORS, ["image"], "'image', which matches no observation: there are count, vector"),
        (VECTORS, ["vector", "["], "no regular expression"),
        (VECTORS, [], "chooses no observation"),
        ({"grid": Space(shape=(4, 4), dtype="float32")}, [".*"], "'grid' has shape"),
    ],
)
def test_what_cannot_be_read_is_refused(spaces: dict[str, Space], keys: list[str], complaint: str) -> None:
    with pytest.raises(ReverieError, match=complaint):
        small_encoder(spaces, keys)


def test_identity_concatenates_sorted_keys_and_learns_nothing() -> None:
    spaces = {**SPACES, "image": Space(shape=(2, 1, 3), dtype="uint8"), "scalar": Space(shape=(), dtype="float32")}
    identity = Identity(spaces=spaces)
    given = {
        "vector": torch.arange(5.0).expand(2, 5),
        "count": torch.tensor([3, 0]),
        "image": torch.full((2, 2, 1, 3), 255, dtype=torch.uint8),
        "scalar": torch.tensor([7.0, 8.0]),
    }
    rows = [[*count, *[1.0] * 6, scalar, 0, 1, 2, 3, 4] for count, scalar in (([0, 0, 0, 1], 7), ([1, 0, 0, 0], 8))]
    assert identity(given).tolist() == rows
    assert identity.dims() == {"feature_dim": 16}
    assert list(identity.parameters()) == []
