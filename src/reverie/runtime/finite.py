"""Whether numbers are finite, asked and answered on the device: nothing here makes the host wait.

Whoever moves weights asks ``all_finite`` first and then writes with ``replace_where``, so that an update whose loss or
gradient is not finite leaves every bit as it was. A captured graph takes the same path each time; only the flag varies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

SKIPPED = "skipped"
"""The metric by which an optimiser says that it moved nothing: 1 then, 0 else. The loop counts it under this name."""


def skipped_flag(metrics: Mapping[str, Tensor]) -> Tensor | None:
    """1 where an optimiser of an update with these metrics moved nothing, 0 else; None when no metric tells.

    Where there are several optimisers, their names stand before or after a slash, as in ``actor/skipped``.
    """
    flags = [value for name, value in metrics.items() if SKIPPED in name.split("/")]
    return torch.stack(flags).amax().long() if flags else None


def all_finite(*values: Tensor) -> Tensor:
    """Whether every element of ``values`` is finite, as a boolean tensor.

    Asked of sums, because NaN and infinity survive addition: one cheap pass. A sum that overflows counts as not finite.
    """
    return torch.stack([value.detach().sum(dtype=torch.float32) for value in values]).isfinite().all()


@torch.no_grad()
def replace_where(condition: Tensor, changes: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Write each new value over the current one, in place, where ``condition`` holds; elsewhere keep every bit.

    A choice and not a product with the flag: zero times NaN is NaN.
    """
    for current, new in changes:
        if torch.compiler.is_compiling():  # fuses this with what made ``new``
            current.copy_(torch.where(condition, new, current))
        else:
            torch.where(condition, new, current, out=current)
