"""The VAE of World Models: its size, its losses against cases computed by hand, and what it refuses."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from reverie.components.representation_learners.conv_vae import ConvVae, kl_from_standard, sampled
from reverie.types import ReverieError, Space

PICTURE = Space(shape=(64, 64, 3), dtype="uint8")
VECTOR = Space(shape=(3,), dtype="float32")


def made(*, latent: int = 4, kl_tolerance: float = 0.5) -> ConvVae:
    torch.manual_seed(0)
    return ConvVae(spaces={"image": PICTURE, "speed": VECTOR}, latent=latent, depth=2, kl_tolerance=kl_tolerance)


def fixed(vae: ConvVae, *, mean: float, log_variance: float, logit: float) -> ConvVae:
    """Whatever the picture, the same latent and the same grey."""
    with torch.no_grad():
        for layer, bias in ((vae.mean, mean), (vae.log_variance, log_variance), (vae.decoder[-1], logit)):
            layer.weight.zero_()
            layer.bias.fill_(bias)
    return vae


@pytest.mark.parametrize(("latent", "expected"), [(32, 4_348_547), (64, 4_446_915)])
def test_the_published_number_of_parameters(latent: int, expected: int) -> None:
    vae = ConvVae(spaces={"image": PICTURE}, latent=latent, depth=32)
    assert sum(one.numel() for one in vae.parameters()) == expected


def test_pictures_go_in_and_come_out_in_their_shape() -> None:
    vae = made()
    obs = {"image": torch.randint(0, 256, (2, 5, 64, 64, 3), dtype=torch.uint8)}
    mean, log_variance = vae.encoded(obs)
    assert mean.shape == log_variance.shape == (2, 5, 4)
    decoded = vae.decoded(mean)
    assert decoded.shape == (2, 5, 64, 64, 3)
    assert bool(((decoded > 0) & (decoded < 1)).all())


def test_the_error_is_summed_over_the_pixels_of_a_picture() -> None:
    """A black picture, and grey that is one half everywhere: 0.25 for each of 64 x 64 x 3 numbers."""
    vae = fixed(made(), mean=0.0, log_variance=0.0, logit=0.0)
    obs = {"image": torch.zeros(3, 1, 64, 64, 3, dtype=torch.uint8)}
    losses = vae.losses(obs, torch.zeros(3, 1, 4))
    assert losses["reconstruction"].shape == (3, 1)
    assert losses["reconstruction"].tolist() == [[pytest.approx(0.25 * 64 * 64 * 3)]] * 3
    white = {"image": torch.full((1, 64, 64, 3), 255, dtype=torch.uint8)}
    assert vae.losses(white, torch.zeros(1, 4))["reconstruction"].item() == pytest.approx(0.25 * 64 * 64 * 3)


@pytest.mark.parametrize(
    ("mean", "log_variance", "kl"),
    [
        (0.0, 0.0, 0.0),
        (1.0, 0.0, 0.5),
        (0.0, math.log(4.0), -0.5 * (1 + math.log(4.0) - 4)),
    ],
)
def test_the_kl_of_one_number(mean: float, log_variance: float, kl: float) -> None:
    found = kl_from_standard(
        torch.tensor([mean], dtype=torch.float64), torch.tensor([log_variance], dtype=torch.float64)
    )
    assert found.item() == pytest.approx(kl, abs=1e-12)


def test_the_kl_is_that_of_torch() -> None:
    rng = torch.Generator().manual_seed(1)
    mean, log_variance = torch.randn(2, 7, 5, dtype=torch.float64, generator=rng)
    normal = Normal(mean, (log_variance / 2).exp())
    standard = Normal(torch.zeros_like(mean), torch.ones_like(mean))
    expected = kl_divergence(normal, standard).sum(-1)
    assert torch.allclose(kl_from_standard(mean, log_variance), expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("mean", "tolerance", "expected"),
    # Four numbers with a KL of mean ** 2 / 2 each: the floor counts for their sum.
    [(2.0, 0.5, 8.0), (0.5, 0.5, 2.0), (0.5, 0.0, 0.5), (1.0, 0.5, 2.0)],
)
def test_the_floor_is_one_for_the_whole_latent(mean: float, tolerance: float, expected: float) -> None:
    vae = fixed(made(kl_tolerance=tolerance), mean=mean, log_variance=0.0, logit=0.0)
    losses = vae.losses({"image": torch.zeros(1, 64, 64, 3, dtype=torch.uint8)}, torch.zeros(1, 4))
    assert losses["kl"].item() == pytest.approx(expected)


def test_below_the_floor_the_kl_has_no_gradient() -> None:
    obs = {"image": torch.zeros(1, 64, 64, 3, dtype=torch.uint8)}
    slopes = []
    for mean in (0.5, 2.0):
        vae = fixed(made(), mean=mean, log_variance=0.0, logit=0.0)
        (slope,) = torch.autograd.grad(vae.losses(obs, torch.zeros(1, 4))["kl"].sum(), [vae.mean.bias])
        slopes.append(slope.tolist())
    assert slopes == [[0.0] * 4, [2.0] * 4]


def test_a_sample_has_the_deviation_of_its_log_variance() -> None:
    assert sampled(torch.tensor(1.0), torch.tensor(math.log(9.0)), torch.tensor(2.0)).item() == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("spaces", "words"),
    [
        ({"vector": VECTOR}, "has none"),
        ({"one": PICTURE, "other": PICTURE}, "has 2"),
        ({"image": Space(shape=(96, 96, 3), dtype="uint8")}, "set environment.simulator.size=64"),
    ],
)
def test_other_observations_are_refused_with_a_sentence(spaces: dict[str, Space], words: str) -> None:
    with pytest.raises(ReverieError, match=words):
        ConvVae(spaces=spaces)
