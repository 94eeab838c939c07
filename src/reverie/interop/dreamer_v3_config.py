"""A published DreamerV3 configuration: what it says about a setting, and what of it cannot be followed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from reverie.types import ReverieError

FIXED: dict[str, Any] = {
    "agent.contdisc": True,
    "agent.ac_grads": False,
    "agent.imag_last": 0,
    "agent.repval_loss": True,
    "agent.imag_loss.slowtar": False,
    "agent.repl_loss.slowtar": False,
    "agent.slowvalue.every": 1,
    "agent.retnorm.impl": "perc",
    "agent.retnorm.limit": 1.0,
    "agent.retnorm.debias": False,
    "agent.valnorm.impl": "none",
    "agent.advnorm.impl": "none",
    "agent.dyn.typ": "rssm",
    "agent.dyn.rssm.absolute": False,
    "agent.enc.typ": "simple",
    "agent.enc.simple.outer": False,
    "agent.enc.simple.strided": False,
    "agent.dec.typ": "simple",
    "agent.dec.simple.outer": False,
    "agent.dec.simple.strided": False,
    "agent.conhead.output": "binary",
    "agent.policy_dist_disc": "categorical",
    "agent.opt.momentum": True,
    "agent.opt.nesterov": False,
    "agent.opt.wd": 0.0,
    "agent.opt.schedule": "const",
}
"""Published switches that our workflow has in this position only."""

SPACES = ("obs", "action")
"""Keys whose values describe the environment."""


class PublishedConfig:
    """What differs from the published defaults, flat: by full names (``agent.opt.lr``) or by patterns (``*.units``).

    Of several entries for one setting the last counts, as in the reference. Keys that mean nothing here (those of the
    run, the replay, the machine) are never looked at.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._entries = dict(_flat(config))

    def get(self, name: str, default: Any = None, *, is_exact: bool = False) -> Any:
        """``is_exact``: the published configuration does not have this name, so that no pattern can reach it there."""
        key = self._key(name, is_exact=is_exact)
        return default if key is None else self._entries[key]

    def chosen(self, name: str, choices: Sequence[Any], *, is_exact: bool = False) -> Any:
        """One of ``choices``, of which the first is the default; anything else is refused."""
        value = self.get(name, choices[0], is_exact=is_exact)
        if value not in choices:
            raise self.refusal(name, f"only {' and '.join(map(str, choices))} are supported")
        return value

    def check(self) -> None:
        """Refuse what cannot be followed, rather than compute something else."""
        for name, value in FIXED.items():
            if self.get(name, value) != value:
                raise self.refusal(name, f"only {value} is supported")

    def refusal(self, name: str, reason: str) -> ReverieError:
        """For a setting that was given, in the words in which it was given."""
        key = self._key(name, is_exact=False)
        shown = f"`{name}`" if key == name else f"`{key}` (for {name})"
        return ReverieError(f"{shown} is {self.get(name)}, but {reason}.")

    def _key(self, name: str, *, is_exact: bool) -> str | None:
        found = [key for key in self._entries if key == name or (not is_exact and _reaches(key, name))]
        return found[-1] if found else None


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in config.items():
        if isinstance(value, Mapping) and prefix + key not in SPACES:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _reaches(pattern: str, name: str) -> bool:
    """``*.units``, or the regular expression ``.*\\.units`` as the published files write it."""
    if ".*" not in pattern:
        return "*" in pattern and fnmatchcase(name, pattern)
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False
