"""The language in which kernels are written, under names that a type checker accepts, and what all kernels share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import triton
import triton.language

from reverie.components.networks.layers import NORM_EPSILON

if TYPE_CHECKING:  # Triton's own types are the compiler's view of values, not that of who writes kernels
    tl: Any = ...
    constexpr = Any
    tensor = Any
else:
    tl = triton.language
    constexpr, tensor = tl.constexpr, tl.tensor

EPSILON = tl.constexpr(NORM_EPSILON)


@triton.jit
def await_earlier(OVERLAP: constexpr) -> None:
    """In every kernel that may be launched to overlap: then it has begun before the one ahead of it has ended."""
    if OVERLAP:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
