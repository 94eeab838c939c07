"""What dm_control works out anew at every step, worked out once: the same physics, bit for bit."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from reverie.environments.base import simulator_package


def take_shortcuts(physics: Any) -> None:
    """Names of bodies and joints are looked up once, and a step of the physics goes straight to MuJoCo."""
    index = _package("dm_control.mujoco.index")
    remembering = _remembering_indexer()
    physics._named = type(physics._named)(
        *(
            index.make_struct_indexer({name: remembering(field) for name, field in struct._asdict().items()})
            for struct in physics._named
        )
    )
    if _is_stepped_plainly(physics):
        physics.step = _direct_step(physics)


@cache
def _remembering_indexer() -> type:
    """A class: what dm_control has in the place of an array, which is indexed by names."""
    indexer = _package("dm_control.mujoco.index").FieldIndexer

    class RememberingIndexer(indexer):
        __slots__ = ("_known",)

        def __init__(self, plain: Any) -> None:
            self._field_name, self._field, self._axes = plain._field_name, plain._field, plain._axes
            self._known: dict[Any, Any] = {}

        def _convert_key(self, key: Any) -> Any:
            try:
                return self._known[key]
            except (KeyError, TypeError):  # lists and slices have no hash
                fixed = _fixed(key)
            if fixed is None:
                return super()._convert_key(key)
            if fixed not in self._known:
                self._known[fixed] = super()._convert_key(key)
            if isinstance(key, str):
                self._known[key] = self._known[fixed]
            return self._known[fixed]

    return RememberingIndexer


def _fixed(key: Any) -> tuple[Any, ...] | None:
    """A key made of names, lists of names and slices, in a form that can be remembered; None for any other.

    Numbers are left out: they would take each other's places, since 1 equals True.
    """
    fixed: list[Any] = []
    for part in key if isinstance(key, tuple) else (key,):
        if isinstance(part, str):
            fixed.append(part)
        elif isinstance(part, slice):
            fixed.append((part.start, part.stop, part.step))
        elif isinstance(part, list) and {type(name) for name in part} == {str}:
            fixed.append(tuple(part))
        else:
            return None
    return tuple(fixed)


def _is_stepped_plainly(physics: Any) -> bool:
    """Whether `_direct_step` does all that the step of this class does, with an integrator of the common kind."""
    plain = _package("dm_control.mujoco.engine").Physics
    is_own = any(
        getattr(type(physics), name) is not getattr(plain, name)
        for name in ("step", "_step_with_up_to_date_position_velocity", "check_invalid_state")
    )
    runge_kutta = _package("mujoco").mjtIntegrator.mjINT_RK4.value
    return physics.legacy_step and not is_own and physics.model.opt.integrator != runge_kutta


def _direct_step(physics: Any) -> Callable[..., None]:
    mujoco, plain_step = _package("mujoco"), type(physics).step
    data, warnings = physics.data, physics._warnings
    model_pointer, data_pointer = physics.model.ptr, physics.data.ptr
    owner = weakref.proxy(physics)  # which keeps this function, and must not be kept by it

    def step(nstep: int = 1) -> None:
        if owner.data is not data:  # another model was loaded since
            plain_step(owner, nstep)
            return
        before = warnings.copy()
        mujoco.mj_step2(model_pointer, data_pointer)
        if nstep > 1:
            mujoco.mj_step(model_pointer, data_pointer, nstep - 1)
        mujoco.mj_step1(model_pointer, data_pointer)
        if warnings.tobytes() != before.tobytes():
            _report(owner, before)

    return step


def _report(physics: Any, before: np.ndarray) -> None:
    """Let dm_control find the new warnings and say what it thinks of them."""
    after = physics._warnings.copy()
    physics._warnings[...] = before
    with physics.check_invalid_state():
        physics._warnings[...] = after


def _package(name: str) -> Any:
    return simulator_package(name, task="dmc", extra="dmc")
