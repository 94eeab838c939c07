"""Whether networks compute their convolutions as they are written, or rewritten for a GPU."""

from __future__ import annotations


class _Setting:
    is_on = False


def use_rewritten_convolutions(*, is_on: bool) -> None:
    """For the whole process. The rewritten form rounds differently, so a run keeps to one setting."""
    _Setting.is_on = is_on


def convolutions_are_rewritten() -> bool:
    return _Setting.is_on
