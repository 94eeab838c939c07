"""How long do encoder and decoder of pictures take, as written and with rewritten convolutions?

    python benchmarks/convolutions.py [--sizes 12m 200m] [--pictures 1024] [--calls 50] [--any-kernels]
    python benchmarks/convolutions.py --weights [--tiles] [--sizes 12m 200m] [--pictures 1024] [--calls 50]

Forward and backward on pictures of 64x64x3 in bfloat16, replayed as a CUDA graph, with the settings of `runtime=gpu`;
`--any-kernels` allows those that are not deterministic. Prints the best of four loops and how near the gradients are to
those of the plain form, and writes benchmarks/results/convolutions.json. Needs a CUDA device.

`--weights` times the weights' gradients of an encoder's layers alone, behind the first one: by cuDNN and by the kernel
of `weight_gradient_kernel.py`, which `--tiles` tries in other tiles too.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.benchmark import fastest_call
from reverie.commands.composition import composed
from reverie.components.networks.images import MULTIPLIERS, ImageDecoder, ImageEncoder, stage_depths
from reverie.configuration import section
from reverie.runtime.capture import Captured
from reverie.runtime.compilation import compiled_step, use_compiled_steps
from reverie.runtime.convolutions import use_rewritten_convolutions
from reverie.runtime.device import RuntimeConfig, prepare_torch
from reverie.runtime.precision import Precision
from reverie.types import Metrics, Space

RESULTS = Path(__file__).parent / "results" / "convolutions.json"
SPACES = {"image": Space(shape=(64, 64, 3), dtype="uint8")}
FORMS = {"plain eager": (False, False), "plain compiled": (False, True), "rewritten compiled": (True, True)}
"""Whether convolutions are rewritten, and whether the step is compiled."""
KERNEL = 5
TILE_NAMES = ("terms", "outputs", "more_outputs", "pixels", "warps", "stages")
TILES = (
    (256, 128, 0, 64, 8, 4),
    (256, 128, 64, 64, 16, 3),
    (128, 128, 64, 64, 8, 4),
    (128, 256, 0, 64, 8, 4),
    (128, 128, 0, 64, 8, 3),
    (256, 64, 0, 64, 8, 4),
    (128, 64, 0, 64, 4, 4),
)
"""That ``--tiles`` tries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pass:
    """Forward and backward through one network."""

    loss: Callable[[], Tensor]
    leaves: Sequence[Tensor]
    """What gradients are asked for."""
    precision: Precision

    def gradients(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        with self.precision.applied():
            loss = self.loss()
        return loss.detach(), torch.autograd.grad(loss, self.leaves)

    def __call__(self) -> Metrics:
        return {"loss": self.gradients()[0]}


def encoder_pass(size: Any, *, pictures: int, device: torch.device, precision: str = "bfloat16") -> Pass:
    torch.manual_seed(0)
    encoder = ImageEncoder(spaces=SPACES, depth=size.depth).to(device)
    seen = _pictures(pictures, device)

    @compiled_step
    def loss(seen: Tensor) -> Tensor:
        return encoder({"image": seen}).float().square().mean()

    leaves = list(encoder.parameters())
    return Pass(loss=lambda: loss(seen), leaves=leaves, precision=Precision(precision, device))


def decoder_pass(size: Any, *, pictures: int, device: torch.device, precision: str = "bfloat16") -> Pass:
    torch.manual_seed(0)
    dims = {"deter_dim": size.deter, "stoch_dim": size.stoch * size.classes}
    decoder = ImageDecoder(spaces=SPACES, **dims, units=size.units, depth=size.depth, blocks=size.blocks).to(device)
    deter, stoch = (torch.randn(pictures, dim, device=device).requires_grad_() for dim in dims.values())
    seen = _pictures(pictures, device)

    @compiled_step
    def loss(deter: Tensor, stoch: Tensor, seen: Tensor) -> Tensor:
        return decoder(deter, stoch)["image"].loss(seen).mean()

    leaves = [*decoder.parameters(), deter, stoch]
    return Pass(loss=lambda: loss(deter, stoch, seen), leaves=leaves, precision=Precision(precision, device))


PARTS = {"encoder": encoder_pass, "decoder": decoder_pass}


def _pictures(count: int, device: torch.device) -> Tensor:
    return torch.randint(0, 256, (count, 64, 64, 3), dtype=torch.uint8, device=device)


def size_of(name: str, *, any_kernels: bool = False) -> tuple[Any, RuntimeConfig]:
    """The numbers of a size, and those of `runtime=gpu`."""
    overrides = [f"size={name}", "runtime=gpu", f"runtime.is_deterministic={str(not any_kernels).lower()}"]
    config = composed("gym_CartPole-v1", ["experiment=dreamer_cartpole", *overrides])
    return config.size, section(RuntimeConfig, config.runtime, path="runtime")


def measured(part: str, size: Any, *, pictures: int, calls: int, device: torch.device) -> dict[str, object]:
    """Milliseconds of each form, seconds to its first call, and the cosine of its gradients with the plain form's."""
    found: dict[str, object] = {}
    expected: Tensor | None = None
    for form, (is_rewritten, is_compiled) in FORMS.items():
        use_rewritten_convolutions(is_on=is_rewritten)
        use_compiled_steps(is_on=is_compiled)
        start = time.perf_counter()
        one = PARTS[part](size, pictures=pictures, device=device)
        gradients = torch.cat([gradient.flatten().float() for gradient in one.gradients()[1]])
        torch.cuda.synchronize(device)
        seconds = time.perf_counter() - start
        expected = gradients if expected is None else expected
        captured = Captured(one, name=f"{part}, {form}", generators=list)
        for _ in range(5):
            captured()
        found[form] = {
            "ms": round(fastest_call(captured, calls=calls, wait=torch.cuda.synchronize), 3),
            "seconds_to_first_call": round(seconds, 1),
            "cosine_to_plain": round(torch.cosine_similarity(gradients, expected, dim=0).item(), 6),
        }
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """Of an encoder, behind its first one."""

    pictures: int
    height: int
    inputs: int
    outputs: int

    @property
    def products(self) -> int:
        return 2 * self.pictures * self.height**2 * KERNEL**2 * self.inputs * self.outputs

    def made_up(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Pictures, and the gradient of the result."""
        shape = self.pictures, self.height, self.height
        x, slope = (torch.randn(*shape, channels, device=device) for channels in (self.inputs, self.outputs))
        return x.bfloat16(), slope.bfloat16()


def encoder_layers(depth: int, pictures: int) -> list[Layer]:
    pairs = itertools.pairwise(stage_depths(depth, MULTIPLIERS))
    return [Layer(pictures=pictures, height=32 >> place, inputs=a, outputs=b) for place, (a, b) in enumerate(pairs)]


def weight_gradient_by_cudnn(x_NHWC: Tensor, slope_NHWC: Tensor) -> Tensor:
    """[O, I, K, K]."""
    x, slope = (one.permute(0, 3, 1, 2) for one in (x_NHWC, slope_NHWC))
    weight = x.new_empty(slope.shape[1], x.shape[1], KERNEL, KERNEL).to(memory_format=torch.channels_last)
    step, reach, wanted = [1, 1], [KERNEL // 2] * 2, [False, True, False]
    back = torch.ops.aten.convolution_backward
    return back(slope, x, weight, None, step, reach, step, False, [0, 0], 1, wanted)[1]


def weight_forms(*, tries_tiles: bool) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """What makes the weights' gradient, the first one by cuDNN. Triton takes a second to load, so it is loaded here."""
    from reverie.components.networks.weight_gradient_launch import Tiles, weight_gradient

    def by_kernel(x: Tensor, slope: Tensor, tiles: Tiles | None = None) -> Tensor:
        return weight_gradient(x, slope, KERNEL, tiles).permute(3, 2, 0, 1)

    tried = [Tiles(**dict(zip(TILE_NAMES, one, strict=True))) for one in TILES if tries_tiles]
    return {"cuDNN": weight_gradient_by_cudnn, "kernel": by_kernel} | {
        " ".join(map(str, dataclasses.astuple(one))): partial(by_kernel, tiles=one) for one in tried
    }


def print_weight_gradients(size: str, layer: Layer, *, calls: int, tries_tiles: bool, device: torch.device) -> None:
    x, slope = layer.made_up(device)
    expected: Tensor | None = None
    for form, function in weight_forms(tries_tiles=tries_tiles).items():
        found = function(x, slope).flatten().float()
        expected = found if expected is None else expected
        cosine = torch.cosine_similarity(found, expected, dim=0).item()
        one = Captured(lambda make=function: {"first": make(x, slope)[0, 0, 0, 0]}, name=form, generators=list)
        for _ in range(5):
            one()
        ms = fastest_call(one, calls=calls, wait=torch.cuda.synchronize)
        cells = [f"{size}, {layer.inputs} to {layer.outputs}", form, f"{ms:.3f}", f"{layer.products / ms / 1e9:.0f}"]
        print("| " + " | ".join([*cells, f"{cosine:.5f}"]) + " |", flush=True)


def weights_main(sizes: Sequence[str], *, pictures: int, calls: int, tries_tiles: bool, any_kernels: bool) -> int:
    device = torch.device("cuda")
    print(f"Tiles: {', '.join(TILE_NAMES)}.\n")
    print(f"| weights' gradient, {pictures} pictures | by | ms | TFLOP/s | cosine |\n|---|---|---|---|---|")
    for size in sizes:
        numbers, runtime = size_of(size, any_kernels=any_kernels)
        prepare_torch(runtime, device)
        for layer in encoder_layers(numbers.depth, pictures):
            print_weight_gradients(size, layer, calls=calls, tries_tiles=tries_tiles, device=device)
    return 0


def row_of(part: str, size: str, forms: dict[str, Any]) -> str:
    cells = [f"{forms[form]['ms']:.2f} ms (cosine {forms[form]['cosine_to_plain']:.5f})" for form in FORMS]
    return f"| {part}, {size} | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["12m", "200m"])
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--any-kernels", action="store_true")
    parser.add_argument("--weights", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    arguments = parser.parse_args()
    if arguments.tiles and not arguments.weights:
        parser.error("--tiles goes with --weights")
    if not torch.cuda.is_available():
        print("This measures what a CUDA device gains, and torch sees none here.", file=sys.stderr)
        return 2
    options = {"pictures": arguments.pictures, "calls": arguments.calls, "any_kernels": arguments.any_kernels}
    if arguments.weights:
        return weights_main(arguments.sizes, tries_tiles=arguments.tiles, **options)
    return networks_main(arguments.sizes, **options)


def networks_main(sizes: Sequence[str], *, pictures: int, calls: int, any_kernels: bool) -> int:
    device, found = torch.device("cuda"), []
    print(f"| forward and backward, {pictures} pictures | " + " | ".join(FORMS) + " |")
    print("|---" * (len(FORMS) + 1) + "|")
    for size in sizes:
        numbers, runtime = size_of(size, any_kernels=any_kernels)
        prepare_torch(runtime, device)
        for part in PARTS:
            forms = measured(part, numbers, pictures=pictures, calls=calls, device=device)
            found.append({"part": part, "size": size, "is_deterministic": runtime.is_deterministic, "forms": forms})
            print(row_of(part, size, forms), flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    result = {"hardware": torch.cuda.get_device_name(), **versions, "commit": commit}
    result |= {"pictures": pictures, "results": found}
    print(json.dumps(result))
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
