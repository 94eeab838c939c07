"""Rewritten convolutions are the written ones: values, gradients, published numbers, and the same parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import test_observations_parity as parity
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import assert_near
from small_dreamer import phase, small_dreamer, synthetic_batch
from torch import Tensor, nn
from torch.nn import functional as F

from reverie.components.networks import corner_convolutions
from reverie.components.networks.images import ImageDecoder, ImageEncoder
from reverie.runtime import device
from reverie.runtime.convolutions import convolutions_are_rewritten, use_rewritten_convolutions
from reverie.runtime.device import RuntimeConfig, prepare_torch
from reverie.runtime.precision import Precision
from reverie.types import Space, Spaces

EXACT = 1e-12
SPACES = {"image": Space(shape=(32, 48, 3), dtype="uint8")}

Form = Callable[[Tensor, Tensor, Tensor], Tensor]


@pytest.fixture
def rewritten() -> Iterator[None]:
    use_rewritten_convolutions(is_on=True)
    yield
    use_rewritten_convolutions(is_on=False)


def plain_doubled(x_NHWC: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    x_NCHW = F.interpolate(x_NHWC.permute(0, 3, 1, 2), scale_factor=2, mode="nearest")
    return F.conv2d(x_NCHW, weight, bias, padding="same").permute(0, 2, 3, 1)


def plain_halved(x_NHWC: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    y_NCHW = F.conv2d(x_NHWC.permute(0, 3, 1, 2), weight, bias, padding="same")
    return F.max_pool2d(y_NCHW, 2).permute(0, 2, 3, 1)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_same(one: Form, other: Form, inputs: tuple[Tensor, Tensor, Tensor]) -> None:
    """Outputs, and gradients to picture, weight and bias."""
    found = []
    for form in (one, other):
        leaves = [value.clone().requires_grad_() for value in inputs]
        output = form(leaves[0], leaves[1], leaves[2])
        found.append((output, *torch.autograd.grad((output * normal(*output.shape, seed=1)).sum(), leaves)))
    for name, value, expected in zip(("output", "picture", "weight", "bias"), *found, strict=True):
        assert_near(value, expected.detach(), EXACT, what=name)


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(1, 24),
    width=st.integers(1, 24),
    channels=st.integers(1, 6),
    outputs=st.integers(1, 6),
    kernel=st.sampled_from([1, 3, 5, 5, 5, 7]),
)
def test_the_small_map_is_enough(height: int, width: int, channels: int, outputs: int, kernel: int) -> None:
    weight, bias = normal(outputs, channels, kernel, kernel, seed=2), normal(outputs, seed=3)
    small = normal(2, height, width, channels)
    assert_same(corner_convolutions.doubled_then_conv, plain_doubled, (small, weight, bias))
    large = normal(2, 2 * ((height + 1) // 2), 2 * ((width + 1) // 2), channels)
    assert_same(corner_convolutions.conv_then_halved, plain_halved, (large, weight, bias))
    assert_same(corner_convolutions.channels_last_conv, same_conv, (small, weight, bias))


def same_conv(x_NHWC: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.conv2d(x_NHWC.permute(0, 3, 1, 2), weight, bias, padding="same").permute(0, 2, 3, 1)


def test_only_a_border_of_zeros_lies_around_the_large_picture() -> None:
    """A kernel of ones counts the pixels that it reaches; one that only looks up left sees the border itself."""
    ones = torch.ones(1, 2, 3, 1, dtype=torch.float64), torch.ones(1, 1, 5, 5, dtype=torch.float64)
    counted = corner_convolutions.doubled_then_conv(*ones, torch.zeros(1, dtype=torch.float64))
    rows, columns = torch.tensor([3.0, 4, 4, 3]), torch.tensor([3.0, 4, 5, 5, 4, 3])
    assert counted[0, ..., 0].tolist() == (rows[:, None] * columns).tolist()
    looks = torch.zeros(1, 1, 5, 5, dtype=torch.float64)
    looks[..., 0, 0] = 1
    seen = corner_convolutions.doubled_then_conv(ones[0], looks, torch.zeros(1, dtype=torch.float64))
    assert seen[0, ..., 0].nonzero().amin(0).tolist() == [2, 2]


def test_of_equal_pixels_the_same_one_learns() -> None:
    """Whole numbers, so that ties are exact in both forms; max_pool2d gives the gradient to the first of them."""
    generator = torch.Generator().manual_seed(0)
    picture, weight = (
        torch.randint(-1, 2, shape, generator=generator).double() for shape in ((4, 16, 16, 2), (3, 2, 5, 5))
    )
    nothing = torch.zeros(3, dtype=torch.float64)
    assert_same(corner_convolutions.conv_then_halved, plain_halved, (picture, weight, nothing))
    squares = same_conv(picture, weight, nothing).unflatten(2, (-1, 2)).unflatten(1, (-1, 2)).transpose(2, 3)
    values = squares.flatten(3, 4).sort(3).values
    assert (values[..., -1, :] == values[..., -2, :]).double().mean() > 0.05


def test_what_is_not_a_number_stays() -> None:
    """Two numbers whose doubles are infinite, and a kernel that subtracts its right neighbour from its left one."""
    weight = torch.zeros(1, 1, 3, 3)
    weight[..., 1, 0], weight[..., 1, 2] = 2, -2
    for row, column in ((2, 2), (2, 3), (3, 2), (3, 3)):
        picture = torch.zeros(1, 6, 8, 1)
        picture[:, row, [column - 1, column + 1]] = 3e38
        forms = (corner_convolutions.conv_then_halved, plain_halved)
        one, other = (form(picture, weight, torch.zeros(1)) for form in forms)
        assert other[0, ..., 0].isnan().nonzero().tolist() == [[1, 1]]
        assert torch.equal(one.nan_to_num(nan=-1), other.nan_to_num(nan=-1))


@pytest.mark.parametrize(
    ("rewritten_form", "plain_form", "disorder"),
    [
        # A maximum does not mind which corner is which, so there it is the corners of the input that change places.
        (corner_convolutions.doubled_then_conv, plain_doubled, lambda kernels: kernels[[0, 2, 1, 3]]),
        (corner_convolutions.conv_then_halved, plain_halved, lambda kernels: kernels.transpose(-1, -3)),
    ],
    ids=["doubled", "halved"],
)
def test_corners_in_a_wrong_order_are_found(
    rewritten_form: Form, plain_form: Form, disorder: Callable[[Tensor], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = normal(2, 8, 8, 3), normal(2, 3, 5, 5, seed=2), normal(2, seed=3)
    assert_same(rewritten_form, plain_form, inputs)
    right = corner_convolutions.corner_kernels
    monkeypatch.setattr(corner_convolutions, "corner_kernels", lambda weight: disorder(right(weight)))
    with pytest.raises(AssertionError, match="output differs"):
        assert_same(rewritten_form, plain_form, inputs)


def networks() -> tuple[ImageEncoder, ImageDecoder]:
    torch.manual_seed(0)
    decoder = ImageDecoder(spaces=SPACES, deter_dim=24, stoch_dim=10, units=8, depth=4)
    return ImageEncoder(spaces=SPACES, depth=4), decoder


def computed(encoder: ImageEncoder, decoder: ImageDecoder) -> dict[str, Tensor]:
    """Tokens, pictures, and the gradients of both to every parameter."""
    generator = torch.Generator().manual_seed(0)
    pictures = torch.randint(256, (2, 3, 32, 48, 3), dtype=torch.uint8, generator=generator)
    tokens = encoder({"image": pictures})
    latents = torch.randn(2, 3, 24, generator=generator), torch.randn(2, 3, 10, generator=generator)
    decoded = decoder(*latents)["image"]
    cotangent = torch.randn(tokens.shape, generator=generator)
    loss = decoded.loss(pictures).mean() + (tokens.float() * cotangent).sum()
    named = {f"encoder.{name}": value for name, value in encoder.named_parameters()}
    named |= {f"decoder.{name}": value for name, value in decoder.named_parameters()}
    found = {"tokens": tokens, "picture": decoded.mean()}
    return found | dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_whole_networks_in_both_forms(precision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made, forms = networks(), []
    called = count_calls(monkeypatch)
    for is_on in (False, True):
        use_rewritten_convolutions(is_on=is_on)
        with Precision(precision, torch.device("cpu")).applied():
            forms.append(computed(*made))
    use_rewritten_convolutions(is_on=False)
    assert called == {"conv_then_halved": 1, "doubled_then_conv": 4}
    for name, expected in forms[0].items():
        if precision == "float32":
            assert_near(forms[1][name], expected.detach(), what=name)
        else:
            cosine = F.cosine_similarity(forms[1][name].flatten().float(), expected.flatten().float(), dim=0)
            assert cosine > 0.999, name
        assert forms[1][name].dtype == expected.dtype


def count_calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each rewriting is used from now on."""
    called = {"conv_then_halved": 0, "doubled_then_conv": 0}

    def counting(name: str) -> Form:
        original: Form = getattr(corner_convolutions, name)

        def call(x_NHWC: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
            called[name] += 1
            return original(x_NHWC, weight, bias)

        return call

    for name in called:
        monkeypatch.setattr(corner_convolutions, name, counting(name))
    return called


def test_published_numbers_through_the_rewritten_form(rewritten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called = count_calls(monkeypatch)
    parity.test_the_whole_encoder_and_its_gradients()
    parity.test_the_whole_decoder_and_its_gradients()
    assert called == {"conv_then_halved": 1, "doubled_then_conv": 4}


def test_other_stages_and_several_pictures(rewritten: None) -> None:
    parity.test_multipliers_give_the_channels_and_the_number_of_stages()
    parity.test_several_pictures_are_joined_in_the_order_of_their_keys()


def test_parameters_are_the_same_in_both_forms(rewritten: None) -> None:
    made = networks()
    use_rewritten_convolutions(is_on=False)
    for one, other in zip(made, networks(), strict=True):
        assert_same_state(one, other)
    before = [{name: value.clone() for name, value in one.state_dict().items()} for one in made]
    use_rewritten_convolutions(is_on=True)
    computed(*made)
    for one, state in zip(made, before, strict=True):
        assert all(value.equal(state[name]) for name, value in one.state_dict().items())
        assert all(value.is_contiguous() for value in one.parameters())


def assert_same_state(one: nn.Module, other: nn.Module) -> None:
    mine, its = one.state_dict(), other.state_dict()
    assert list(mine) == list(its)
    for name in mine:
        assert mine[name].equal(its[name])
        assert mine[name].stride() == its[name].stride()


def test_an_update_in_both_forms() -> None:
    spaces = Spaces(
        obs={"image": Space(shape=(32, 32, 3), dtype="uint8")}, action=Space(shape=(), dtype="int64", classes=3)
    )
    metrics = []
    for is_on in (False, True):
        dreamer = small_dreamer(spaces=spaces)
        use_rewritten_convolutions(is_on=is_on)
        metrics.append(dreamer.update(synthetic_batch(spaces=spaces), phase=phase()).metrics)
    use_rewritten_convolutions(is_on=False)
    assert metrics[0]["loss/reconstruction"] != metrics[1]["loss/reconstruction"]
    for name, value in metrics[0].items():
        assert metrics[1][name].item() == pytest.approx(value.item(), rel=1e-4, abs=1e-6), name


def test_a_policy_that_acts_keeps_the_plain_form(rewritten: None, monkeypatch: pytest.MonkeyPatch) -> None:
    called = count_calls(monkeypatch)
    with torch.no_grad():
        networks()[0]({"image": torch.zeros(1, 32, 48, 3, dtype=torch.uint8)})
    assert called["conv_then_halved"] == 0


def test_the_compiler_takes_both_networks_whole(rewritten: None) -> None:
    """On a GPU they are compiled; traced here with their gradients, without a graph break, and run as they are."""
    encoder, decoder = networks()
    latents = torch.randn(2, 24), torch.randn(2, 10)
    pictures = {"image": torch.zeros(2, 32, 48, 3, dtype=torch.uint8)}
    for function, inputs in ((encoder, (pictures,)), (lambda *given: decoder(*given)["image"].mean(), latents)):
        whole = torch.compile(function, backend="aot_eager", fullgraph=True, dynamic=False)
        assert_near(whole(*inputs), function(*inputs).detach())
        whole(*inputs).sum().backward()
    torch.compiler.reset()


def test_the_form_is_chosen_by_runtime_and_device(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[tuple[bool, bool]] = []

    def choose(*, is_on: bool, has_kernels: bool) -> None:
        chosen.append((is_on, has_kernels))

    monkeypatch.setattr(device, "use_rewritten_convolutions", choose)
    monkeypatch.setattr(device, "use_compiled_steps", lambda *, is_on: None)
    monkeypatch.setattr(torch.cuda, "set_device", lambda index: None)
    hopper, workstation = 227 * 1024, 99 * 1024
    for name, room, is_wanted in (
        ("cpu", 0, True),
        ("cuda", hopper, True),
        ("cuda", workstation, True),
        ("cuda", hopper, False),
    ):
        monkeypatch.setattr(device, "shared_bytes", lambda _, found=room: found)
        config = RuntimeConfig(rewrites_convolutions=is_wanted, is_deterministic=False)
        prepare_torch(config, torch.device(name))
    assert chosen == [(False, False), (True, True), (True, False), (False, True)]
    assert not convolutions_are_rewritten()
