"""Which device a run uses and how torch behaves on it."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch

from reverie.runtime.compilation import PLANS, WALKS, use_compiled_steps, use_plans, use_walk
from reverie.runtime.convolutions import use_rewritten_convolutions
from reverie.runtime.kernel_room import HAS_TRITON, HOPPER_BYTES, shared_bytes
from reverie.types import ReverieError, require_choice

ACTING_WEIGHTS = ("auto", "current", "lagged")


@dataclass(frozen=True, kw_only=True, slots=True)
class RuntimeConfig:
    threads: int = 1
    """CPU threads of torch. Tiny models are fastest on one; the bits of a run depend on it."""
    is_deterministic: bool = True
    """Ask torch for kernels that give the same bits every time."""
    finds_anomalies: bool = False
    """Autograd names the forward operation that produced a NaN gradient. Slow."""
    precision: str = "float32"
    """In which numbers networks compute: float32, bfloat16, or auto (bfloat16 on a CUDA device)."""
    captures_updates: bool = False
    """On a CUDA device, replay each update as one CUDA graph. On a processor there is nothing to capture."""
    captures_acting: bool = False
    """On a CUDA device, replay each step of the policy as one CUDA graph."""
    acting_weights: str = "current"
    """Which weights act while collecting: ``current`` ones, or ``lagged`` ones from before the last update, with which
    a CUDA device can act beside that update; ``auto`` is lagged there. Evaluations take the current ones."""
    compiles_steps: bool = False
    """On a CUDA device, compile recurrent steps, losses and the optimiser's step: half a minute at the start."""
    rewrites_convolutions: bool = False
    """On a CUDA device, learn from pictures with convolutions of small maps: the same function, rounded differently."""
    walk: str = "autograd"
    """Where steps are compiled, how DreamerV3 walks along sequences: by ``autograd``, ``by_hand`` with gradients of its
    own, or ``fused`` with kernels of its own too."""
    plans: str = "compiled"
    """Where steps are compiled, how TD-MPC2 plans for numbers: ``compiled``, or ``fused`` in kernels of its own."""

    def __post_init__(self) -> None:
        if self.threads < 1:
            raise ReverieError(f"runtime.threads must be at least 1, got {self.threads}.")
        if self.walk not in WALKS:
            raise ReverieError(f"runtime.walk must be one of {', '.join(WALKS)}, got '{self.walk}'.")
        require_choice("runtime.plans", self.plans, PLANS)
        require_choice("runtime.acting_weights", self.acting_weights, ACTING_WEIGHTS)
        if self.captures_updates and self.finds_anomalies:
            raise ReverieError("runtime.finds_anomalies needs eager updates: set runtime.captures_updates=false.")

    def lags(self, device: torch.device) -> bool:
        """Whether the weights that act while collecting are one update old."""
        return self.acting_weights == "lagged" or (self.acting_weights == "auto" and device.type == "cuda")


def chosen_device(name: str) -> torch.device:
    """``auto`` takes CUDA where there is one. Anything torch cannot use here is refused with a sentence."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ReverieError(f"experiment.device must be auto, cpu, cuda or cuda:N, got '{name}'.") from error
    if device.type not in ("cpu", "cuda"):
        raise ReverieError(f"experiment.device must be auto, cpu, cuda or cuda:N, got '{name}'.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise ReverieError(f"experiment.device is '{name}', but torch sees {count} CUDA device(s); use auto or cpu.")
    return device


def prepare_torch(config: RuntimeConfig, device: torch.device) -> None:
    if config.is_deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it once, when CUDA starts
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)  # streams and graphs are made on the current device
    torch.set_num_threads(config.threads)
    torch.set_flush_denormal(True)  # a decayed moment of 1e-40 would make every CPU product slow
    # The same switch as use_deterministic_algorithms, which would also import the compiler: seconds at every start.
    torch.set_deterministic_debug_mode("warn" if config.is_deterministic else "default")
    # Filling fresh memory costs a kernel per tensor, against reads that nobody makes. (Stubs do not know the name.)
    setattr(torch.utils.deterministic, "fill_uninitialized_memory", False)  # noqa: B010
    torch.autograd.set_detect_anomaly(config.finds_anomalies)
    is_cuda = device.type == "cuda"
    if config.compiles_steps and is_cuda and not HAS_TRITON:
        raise ReverieError(
            "runtime.compiles_steps=true needs Triton on a CUDA device, and it is not installed here: set it to false."
        )
    use_compiled_steps(is_on=config.compiles_steps and is_cuda)
    has_room = shared_bytes(device) >= HOPPER_BYTES
    use_rewritten_convolutions(is_on=config.rewrites_convolutions and is_cuda, has_kernels=has_room)
    use_walk(config.walk)
    use_plans(config.plans)
