"""Spaces as JSON and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from reverie.types import Space, Spaces

_DTYPES = ("uint8", "float32", "int64")


def spaces_content(spaces: Spaces) -> dict[str, Any]:
    """Plain values that JSON can hold."""
    return {"obs": {key: asdict(space) for key, space in spaces.obs.items()}, "action": asdict(spaces.action)}


def spaces_of(content: Any) -> Spaces:
    """The inverse; ValueError where it is not the description of spaces."""
    try:
        obs = {str(key): _space(entry) for key, entry in content["obs"].items()}
        return Spaces(obs=obs, action=_space(content["action"]))
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError("no description of spaces") from error


def _space(entry: dict[str, Any]) -> Space:
    classes = entry["classes"]
    shape = tuple(_count(size) for size in entry["shape"])
    if entry["dtype"] not in _DTYPES or (entry["dtype"] == "int64") != (classes is not None):
        raise ValueError(f"dtype {entry['dtype']!r} with classes {classes!r}")
    if isinstance(classes, list):
        return Space(shape=shape, dtype=entry["dtype"], classes=tuple(_count(number) for number in classes))
    return Space(shape=shape, dtype=entry["dtype"], classes=None if classes is None else _count(classes))


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{value!r} counts nothing")
    return value
