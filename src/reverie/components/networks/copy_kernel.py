"""The kernel that makes copies of many parameters in one launch, in Triton."""

from __future__ import annotations

import triton

from reverie.components.networks.kernel_language import constexpr, tensor, tl


@triton.jit
def copy_kernel(jobs: tensor, blocks: tensor, like: tensor, BLOCK: constexpr) -> None:
    """A job: from which address of float32 to which one of the type of ``like``, how many numbers, and of its rows how
    many numbers are wanted and how many there are. A block: of which job, and from which of its numbers on.
    """
    job = jobs + tl.load(blocks + 2 * tl.program_id(0)) * 5
    at = tl.load(blocks + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK)
    source = tl.load(job).to(tl.pointer_type(tl.float32))
    copy = tl.load(job + 1).to(tl.pointer_type(like.dtype.element_ty))
    mask, width = at < tl.load(job + 2), tl.load(job + 3)
    values = tl.load(source + at // width * tl.load(job + 4) + at % width, mask=mask)
    tl.store(copy + at, values.to(like.dtype.element_ty), mask=mask)
