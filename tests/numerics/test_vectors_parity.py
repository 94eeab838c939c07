"""Encoder and decoder of vector observations against the published code; the representation that changes nothing."""

from __future__ import annotations

import pytest
import torch
from reference import GRADIENT, arrays, assert_near, gradients, load_parameters
from torch import Tensor

from reverie.components.networks.distributions import OneHot, SymlogMse
from reverie.components.networks.vectors import VectorDecoder, VectorEncoder
from reverie.components.representation_learners.identity import Identity
from reverie.components.representation_learners.rssm import Latent
from reverie.types import ReverieError, Space

ENCODER, DECODER = arrays("encoder_vector"), arrays("decoder_vector")
SPACES = {
    "vector": Space(shape=(5,), dtype="float32"),
    "count": Space(shape=(), dtype="int64", classes=4),
}


def encoder_arrays(prefix: str) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for i in range(3):
        renamed[f"mlp.linears.{i}.weight"] = ENCODER[f"{prefix}/enc/mlp{i}/kernel"].T
        renamed[f"mlp.linears.{i}.bias"] = ENCODER[f"{prefix}/enc/mlp{i}/bias"]
        renamed[f"mlp.norms.{i}.scale"] = ENCODER[f"{prefix}/enc/mlp{i}norm/scale"]
    return renamed


def decoder_arrays(prefix: str) -> dict[str, Tensor]:
    renamed: dict[str, Tensor] = {}
    for i in range(3):
        renamed[f"mlp.linears.{i}.weight"] = DECODER[f"{prefix}/dec/mlp/linear{i}/kernel"].T
        renamed[f"mlp.linears.{i}.bias"] = DECODER[f"{prefix}/dec/mlp/linear{i}/bias"]
        renamed[f"mlp.norms.{i}.scale"] = DECODER[f"{prefix}/dec/mlp/norm{i}/scale"]
    for key, head in (("count", "logits"), ("vector", "pred")):
        renamed[f"outputs.{key}.weight"] = DECODER[f"{prefix}/dec/vec/{key}/{head}/kernel"].T
        renamed[f"outputs.{key}.bias"] = DECODER[f"{prefix}/dec/vec/{key}/{head}/bias"]
    return renamed


def obs(file: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"vector": file["obs/vector"], "count": file["obs/count"].long()}


def assert_gradients(ours: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert ours.keys() == expected.keys()
    for name, grad in ours.items():
        assert_near(grad, expected[name], GRADIENT, what=name)


def test_encoder() -> None:
    encoder = VectorEncoder(spaces=SPACES, layers=3, units=16)
    load_parameters(encoder, encoder_arrays("param"))
    tokens = encoder(obs(ENCODER))
    assert_near(tokens, ENCODER["tokens_vector_only"])
    assert_gradients(gradients((tokens * ENCODER["cotangent"]).sum(), encoder), encoder_arrays("grad"))
    assert encoder.dims() == {"token_dim": 16}


def test_decoder_reads_the_latent_in_the_order_of_the_reference() -> None:
    latent = Latent(deter=DECODER["feat/deter"], stoch=DECODER["feat/stoch"])
    decoder = VectorDecoder(spaces=SPACES, feature_dim=latent.feature.shape[-1], layers=3, units=16)
    load_parameters(decoder, decoder_arrays("param"))
    decoded = decoder(latent.decoder_feature)
    vector, count = decoded["vector"], decoded["count"]
    assert isinstance(vector, SymlogMse)
    assert isinstance(count, OneHot)
    losses = {"vector": vector.loss(obs(DECODER)["vector"]), "count": count.loss(obs(DECODER)["count"])}
    assert_near(losses["vector"], DECODER["loss/vector"])
    assert_near(losses["count"], DECODER["loss/count"])
    assert_near(count.log_probs, DECODER["pred_logits/count"].log_softmax(-1))
    assert_gradients(gradients(losses["vector"].mean() + losses["count"].mean(), decoder), decoder_arrays("grad"))
    swapped = decoder(latent.feature)["vector"].loss(obs(DECODER)["vector"])
    assert not torch.allclose(swapped, DECODER["loss/vector"], rtol=1e-3)


def test_an_image_is_refused_with_its_name() -> None:
    spaces = {"camera": Space(shape=(64, 64, 3), dtype="uint8")}
    with pytest.raises(ReverieError, match=r"'camera'.*vectors only"):
        VectorEncoder(spaces=spaces, layers=1, units=4)


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
