"""How long do encoder and decoder of pictures take, as written and with rewritten convolutions?

    python benchmarks/convolutions.py [--sizes 12m 200m] [--pictures 1024] [--calls 50] [--any-kernels]

Forward and backward on pictures of 64x64x3 in bfloat16, replayed as a CUDA graph, with the settings of `runtime=gpu`;
`--any-kernels` allows those that are not deterministic. Prints the best of four loops and how near the gradients are to
those of the plain form, and writes benchmarks/results/convolutions.json. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reverie.benchmark import fastest_call
from reverie.commands.composition import composed
from reverie.components.networks.images import ImageDecoder, ImageEncoder
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


def row_of(part: str, size: str, forms: dict[str, Any]) -> str:
    cells = [f"{forms[form]['ms']:.2f} ms (cosine {forms[form]['cosine_to_plain']:.5f})" for form in FORMS]
    return f"| {part}, {size} | " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["12m", "200m"])
    parser.add_argument("--pictures", type=int, default=1024)
    parser.add_argument("--calls", type=int, default=50)
    parser.add_argument("--any-kernels", action="store_true")
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("This measures what a CUDA device gains, and torch sees none here.", file=sys.stderr)
        return 2
    device, found = torch.device("cuda"), []
    print(f"| forward and backward, {arguments.pictures} pictures | " + " | ".join(FORMS) + " |")
    print("|---" * (len(FORMS) + 1) + "|")
    for size in arguments.sizes:
        numbers, runtime = size_of(size, any_kernels=arguments.any_kernels)
        prepare_torch(runtime, device)
        for part in PARTS:
            forms = measured(part, numbers, pictures=arguments.pictures, calls=arguments.calls, device=device)
            found.append({"part": part, "size": size, "is_deterministic": runtime.is_deterministic, "forms": forms})
            print(row_of(part, size, forms), flush=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    result = {"hardware": torch.cuda.get_device_name(), **versions, "commit": commit}
    result |= {"pictures": arguments.pictures, "results": found}
    print(json.dumps(result))
    RESULTS.write_text(json.dumps(result, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
