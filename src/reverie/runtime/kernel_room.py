"""How much a GPU has for one program of a kernel of our own."""

from __future__ import annotations

import functools
import importlib.util

import torch

HOPPER_BYTES = 227 * 1024
"""Shared memory of one program on a Hopper GPU, for which the largest kernels here are cut."""
AMPERE_BYTES = 160 * 1024
"""Less than an A100 has, and more than the GPUs of workstations, with about 100 KB."""

HAS_TRITON = importlib.util.find_spec("triton") is not None


@functools.cache
def shared_bytes(device: torch.device) -> int:
    """Shared memory of one program at most; 0 where there is no NVIDIA GPU or no Triton to write kernels in."""
    if device.type != "cuda" or torch.version.hip is not None or not HAS_TRITON:
        return 0
    return torch.cuda.get_device_properties(device).shared_memory_per_block_optin
