"""Compile the step, not the unrolled loop: functions of tensors, such as a recurrent step, a loss or an optimiser's."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Step = TypeVar("Step", bound=Callable[..., Any])


_MAX_VERSIONS = 64
"""Of one function: one for each form of its arguments that a run meets. The compiler's own limit is eight."""


WALKS = ("autograd", "by_hand", "fused")
PLANS = ("compiled", "fused")


class _Setting:
    is_on = False
    walk = WALKS[0]
    plans = PLANS[0]


def use_compiled_steps(*, is_on: bool) -> None:
    """For the whole process. The compiler rounds differently, so a run keeps to one setting."""
    _Setting.is_on = is_on


def use_walk(name: str) -> None:
    """How recurrent walks are made while steps are compiled, for the whole process: one of ``WALKS``."""
    _Setting.walk = name


def chosen_walk() -> str:
    return _Setting.walk


def defers_gradients() -> bool:
    """Whether the weights of steps are to get their gradients for all steps at once."""
    return _Setting.is_on and _Setting.walk != WALKS[0]


def use_plans(name: str) -> None:
    """How plans are made while steps are compiled, for the whole process: one of ``PLANS``."""
    _Setting.plans = name


def plans_have_kernels() -> bool:
    """Whether plans may be made in kernels of our own."""
    return _Setting.is_on and _Setting.plans == "fused"


def steps_are_compiled() -> bool:
    return _Setting.is_on


@contextmanager
def eager_steps() -> Iterator[None]:
    """Nothing is compiled inside: for code that comes rarely and with ever new shapes."""
    before, _Setting.is_on = _Setting.is_on, False
    try:
        yield
    finally:
        _Setting.is_on = before


def compiled_step(function: Step) -> Step:
    """Compiled where the run asks for it and gradients or captured graphs pay for it: on a CUDA device.

    ``function`` takes and gives tensors, and may write into some. It draws no random numbers and looks at no value.
    """

    @functools.cache
    def compiled() -> Callable[..., Any]:
        from torch._inductor import config as inductor  # seconds at the start of whoever compiles nothing

        setattr(torch._dynamo.config, "recompile_limit", _MAX_VERSIONS)  # noqa: B010, stubs do not know the name
        # Or it chooses among kernels by their time, and two processes round differently.
        inductor.deterministic = torch.get_deterministic_debug_mode() > 0
        # One version per shape, and a graph break or a silent return to eager code would be an error.
        return torch.compile(function, fullgraph=True, dynamic=False)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        return compiled()(*arguments) if _Setting.is_on else function(*arguments)

    return call  # pyright: ignore[reportReturnType]
