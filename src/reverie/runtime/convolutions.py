"""Whether networks compute their convolutions as they are written, or rewritten for a GPU."""

from __future__ import annotations


class _Setting:
    is_on = False
    has_kernels = False


def use_rewritten_convolutions(*, is_on: bool, has_kernels: bool = True) -> None:
    """For the whole process. The rewritten form rounds differently, so a run keeps to one setting.

    ``has_kernels``: those of our own may be used too. They need Triton, and the shared memory of a Hopper GPU.
    """
    _Setting.is_on, _Setting.has_kernels = is_on, is_on and has_kernels


def convolutions_are_rewritten() -> bool:
    return _Setting.is_on


def convolutions_have_kernels() -> bool:
    return _Setting.has_kernels
