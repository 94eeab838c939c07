"""Phases as data: what ``training.phases`` says, checked once and unrolled into a flat tuple."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Literal, get_args

from reverie.buffers.base import Sampler
from reverie.types import PhaseType, ReverieError

HookKind = Literal["collect", "update", "evaluate"]

_PHASE_TYPES: tuple[PhaseType, ...] = get_args(PhaseType)
_DURATION_KEYS = ("duration_steps", "duration_updates", "duration_cycles")
_PHASE_KEYS = ("name", "type", "buffer", *_DURATION_KEYS, "train_ratio", "ratio_from", "controller", "workflow_hooks")
_REPEAT_KEYS = ("repeat", "phases")
_BATCH_KEYS = ("size", "length", "sampler", "crosses_episodes")
_RATIO_STARTS = ("start", "ready")


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """``size`` sequences of ``length`` consecutive rows, drawn by the buffer's sampler of that name, or by several."""

    size: int
    length: int
    sampler: Sampler = "uniform"
    crosses_episodes: bool = True
    """Whether a sequence may begin in one episode and end in another."""
    min_windows: int | None = None
    """Windows that the buffer must hold before the first update, from which a train ratio then counts.

    None: the first update comes with the first batch that can be made, and those that were due before are made up for.
    """

    @property
    def samplers(self) -> tuple[str, ...]:
        """The names of those that take part."""
        return (self.sampler,) if isinstance(self.sampler, str) else tuple(name for name, _ in self.sampler)

    @property
    def windows_needed(self) -> int:
        return self.min_windows or self.size


@dataclass(frozen=True, slots=True)
class HookSpec:
    """One entry of ``workflow_hooks``: ``collect``, ``evaluate``, or any other name, which updates."""

    name: str
    batch: BatchSpec | None = None

    @property
    def kind(self) -> HookKind:
        if self.name == "collect" or self.name == "evaluate":
            return self.name
        return "update"

    @property
    def replayed_steps(self) -> int:
        return 0 if self.batch is None else self.batch.size * self.batch.length


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseSpec:
    """One phase. Exactly one of the three durations is set; 0 passes it over."""

    name: str
    type: PhaseType
    hooks: tuple[HookSpec, ...]
    buffer: str | None = None
    duration_steps: int | None = None
    duration_updates: int | None = None
    duration_cycles: int | None = None
    train_ratio: Fraction | None = None
    """Replayed steps per agent step."""
    controller: str | None = None

    def has_hook(self, kind: HookKind) -> bool:
        return any(hook.kind == kind for hook in self.hooks)

    @property
    def has_batch(self) -> bool:
        return any(hook.batch is not None for hook in self.hooks)


def parse_phases(items: object, *, path: str = "training.phases") -> tuple[PhaseSpec, ...]:
    """The phases in the order in which they run, repeats unrolled; any mistake is a ``ReverieError`` with its key."""
    phases = _phase_list(items, path, suffix="")
    seen: set[str] = set()
    for phase in phases:
        if phase.name in seen:
            raise _mistake(path, f"two phases are called '{phase.name}'; give each phase a name of its own")
        seen.add(phase.name)
    return tuple(phases)


def _phase_list(items: object, path: str, suffix: str) -> list[PhaseSpec]:
    phases: list[PhaseSpec] = []
    for index, item in enumerate(_nonempty_list(items, path, "phases")):
        phases.extend(_phase_or_repeat(_mapping(item, f"{path}[{index}]"), f"{path}[{index}]", suffix))
    return phases


def _phase_or_repeat(item: Mapping[str, Any], path: str, suffix: str) -> list[PhaseSpec]:
    if "repeat" not in item and "phases" not in item:
        return [_phase(item, path, suffix)]
    _refuse_unknown_keys(item, _REPEAT_KEYS, path)
    count = _positive_int(_required(item, "repeat", path), f"{path}.repeat")
    inner = _required(item, "phases", path)
    # Outer repeat first: ``name#2#1`` is the first inner round of the second outer one.
    rounds = [_phase_list(inner, f"{path}.phases", f"{suffix}#{number}") for number in range(1, count + 1)]
    return [phase for phases in rounds for phase in phases]


def _phase(item: Mapping[str, Any], path: str, suffix: str) -> PhaseSpec:
    _refuse_unknown_keys(item, _PHASE_KEYS, path)
    entries = _nonempty_list(_required(item, "workflow_hooks", path), f"{path}.workflow_hooks", "hooks")
    hooks = [_hook(entry, f"{path}.workflow_hooks[{index}]") for index, entry in enumerate(entries)]
    durations = _duration(item, path)
    phase = PhaseSpec(
        name=_text(_required(item, "name", path), f"{path}.name") + suffix,
        type=_phase_type(_required(item, "type", path), f"{path}.type"),
        hooks=tuple(_waiting(hook) if _counts_from_ready(item, path) else hook for hook in hooks),
        buffer=_optional_text(item, "buffer", path),
        duration_steps=durations.get("duration_steps"),
        duration_updates=durations.get("duration_updates"),
        duration_cycles=durations.get("duration_cycles"),
        train_ratio=_train_ratio(item.get("train_ratio"), f"{path}.train_ratio"),
        controller=_optional_text(item, "controller", path),
    )
    _check_hooks(phase, f"{path}.workflow_hooks")
    _check_counts(phase, path)
    return phase


def _check_hooks(phase: PhaseSpec, path: str) -> None:
    collects = sum(hook.kind == "collect" for hook in phase.hooks)
    if phase.type == "online" and collects != 1:
        near = difflib.get_close_matches("collect", [hook.name for hook in phase.hooks], n=1) if collects == 0 else []
        hint = f"; write 'collect' instead of '{near[0]}'" if near else ""
        raise _mistake(path, f"an online phase needs the hook 'collect' exactly once, found it {collects} times{hint}")
    if phase.type == "offline" and collects:
        raise _mistake(path, "an offline phase may not collect; remove the hook 'collect' or set type: online")
    if phase.type == "eval_only":
        for hook in phase.hooks:
            if hook.kind != "evaluate":
                raise _mistake(path, f"an eval_only phase holds only the hook 'evaluate'; remove '{hook.name}'")


def _check_counts(phase: PhaseSpec, path: str) -> None:
    if phase.duration_steps is not None and not phase.has_hook("collect"):
        raise _mistake(f"{path}.duration_steps", "this phase never collects; use duration_updates or duration_cycles")
    if phase.duration_updates is not None and not phase.has_hook("update"):
        raise _mistake(
            f"{path}.duration_updates", "no hook of this phase updates; use duration_steps or duration_cycles"
        )
    if phase.train_ratio is not None and not (phase.has_batch and phase.has_hook("collect")):
        raise _mistake(
            f"{path}.train_ratio", "it needs the hook 'collect' and an updating hook with a batch; remove it"
        )
    if phase.has_batch and phase.buffer is None:
        raise _mistake(f"{path}.buffer", "a hook of this phase takes a batch; name the buffer that it comes from")


def _duration(item: Mapping[str, Any], path: str) -> dict[str, int]:
    given = {key: item[key] for key in _DURATION_KEYS if item.get(key) is not None}
    if len(given) != 1:
        found = " and ".join(given) or "none"
        raise _mistake(path, f"expected exactly one of {', '.join(_DURATION_KEYS)}, found {found}")
    return {key: _whole_number(value, f"{path}.{key}", at_least=0) for key, value in given.items()}


def _phase_type(value: object, path: str) -> PhaseType:
    for known in _PHASE_TYPES:
        if value == known:
            return known
    raise _mistake(path, f"unknown type {value!r}{_suggestion(value, _PHASE_TYPES)}")


def _train_ratio(value: object, path: str) -> Fraction | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise _mistake(path, f"expected a number above 0, found {value!r}")
    # From the decimal text: 0.1 means one tenth here, not the nearest binary number.
    return Fraction(str(value))


def _counts_from_ready(item: Mapping[str, Any], path: str) -> bool:
    start = _optional_text(item, "ratio_from", path)
    if start is not None and start not in _RATIO_STARTS:
        raise _mistake(f"{path}.ratio_from", f"unknown start {start!r}{_suggestion(start, _RATIO_STARTS)}")
    if start == "ready" and item.get("train_ratio") is None:
        raise _mistake(f"{path}.ratio_from", "this phase has no train_ratio to count; add one or remove it")
    return start == "ready"


def _waiting(hook: HookSpec) -> HookSpec:
    """The hook whose first batch waits until the buffer holds as many windows as a batch has rows."""
    if hook.batch is None:
        return hook
    return replace(hook, batch=replace(hook.batch, min_windows=hook.replayed_steps))


def _hook(item: object, path: str) -> HookSpec:
    if isinstance(item, str):
        return HookSpec(_hook_name(item, path))
    entry = _mapping(item, path)
    if len(entry) != 1:
        raise _mistake(path, f"expected a hook name or one name with its options, found {len(entry)} keys")
    name, value = next(iter(entry.items()))
    hook = HookSpec(_hook_name(name, path))
    if hook.kind != "update":
        raise _mistake(path, f"the hook '{name}' takes no options; write it as plain '{name}'")
    options = _mapping(value, f"{path}.{name}")
    _refuse_unknown_keys(options, ("batch",), f"{path}.{name}")
    return HookSpec(name, _batch(_required(options, "batch", f"{path}.{name}"), f"{path}.{name}.batch"))


def _hook_name(name: str, path: str) -> str:
    if not name.isidentifier() or name.startswith("_"):
        raise _mistake(
            path, f"{name!r} cannot be a hook; expected 'collect', 'evaluate' or the name of a workflow's method"
        )
    return name


def _batch(value: object, path: str) -> BatchSpec:
    batch = _mapping(value, path)
    _refuse_unknown_keys(batch, _BATCH_KEYS, path)
    size = _positive_int(_required(batch, "size", path), f"{path}.size")
    length = _positive_int(_required(batch, "length", path), f"{path}.length")
    crosses = batch.get("crosses_episodes")
    if crosses is not None and not isinstance(crosses, bool):
        raise _mistake(f"{path}.crosses_episodes", f"expected true or false, found {crosses!r}")
    return BatchSpec(size, length, _sampler(batch, path), crosses is not False)


def _sampler(batch: Mapping[str, Any], path: str) -> Sampler:
    """A name, or names with fractions of a batch."""
    if not isinstance(batch.get("sampler"), Mapping):
        return _optional_text(batch, "sampler", path) or "uniform"
    path, given = f"{path}.sampler", batch["sampler"]
    for name, fraction in given.items():
        if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise _mistake(f"{path}.{name}", f"expected a fraction above 0 and up to 1, found {fraction!r}")
    if not math.isclose(math.fsum(given.values()), 1.0, abs_tol=1e-6):
        raise _mistake(path, f"the fractions must add up to 1, found {math.fsum(given.values()):g}")
    return tuple((str(name), float(fraction)) for name, fraction in given.items())


def _mistake(path: str, reason: str) -> ReverieError:
    return ReverieError(f"{path}: {reason}.")


def _suggestion(value: object, known: Collection[str]) -> str:
    near = difflib.get_close_matches(str(value), known, n=1, cutoff=0.4)
    meant = f"; did you mean '{near[0]}'" if near else ""
    return f"{meant}; expected one of {', '.join(known)}"


def _refuse_unknown_keys(item: Mapping[str, Any], known: Collection[str], path: str) -> None:
    for key in item:
        if key not in known:
            raise _mistake(f"{path}.{key}", f"unknown key{_suggestion(key, known)}")


def _required(item: Mapping[str, Any], key: str, path: str) -> object:
    if item.get(key) is None:
        raise _mistake(f"{path}.{key}", f"the key '{key}' is missing; add it")
    return item[key]


def _mapping(value: object, path: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise _mistake(path, f"expected keys with values, found {value!r}")
    return value


def _nonempty_list(value: object, path: str, what: str) -> Sequence[object]:
    if not isinstance(value, list | tuple) or not value:
        raise _mistake(path, f"expected a list of at least one of the {what}, found {value!r}")
    return value


def _text(value: object, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise _mistake(path, f"expected a name, found {value!r}")
    return value


def _optional_text(item: Mapping[str, Any], key: str, path: str) -> str | None:
    """None where the key is absent or null: an override can take a key back with ``key=null``."""
    return None if item.get(key) is None else _text(item[key], f"{path}.{key}")


def _positive_int(value: object, path: str) -> int:
    return _whole_number(value, path, at_least=1)


def _whole_number(value: object, path: str, *, at_least: int) -> int:
    # 1e6 reaches us as a float; it is a whole number all the same.
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    if isinstance(whole, bool) or not isinstance(whole, int) or whole < at_least:
        raise _mistake(path, f"expected a whole number of at least {at_least}, found {value!r}")
    return whole
