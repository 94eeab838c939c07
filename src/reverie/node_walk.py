"""Walks config nodes along the annotations of what they describe: once to check everything, once to make it.

Nodes follow Hydra's convention: ``_target_`` names what to call, ``_partial_`` asks for a ``functools.partial``. The
call itself is made here and not by ``hydra.utils.instantiate``, because that would turn a dataclass among the arguments
into a config, pass mappings where a nested dataclass is meant, and wrap every error in its own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from reverie import signatures
from reverie.signatures import joined, unknown_key
from reverie.targets import located
from reverie.types import ReverieError

_NODE_KEYS = ("_target_", "_partial_")


class CheckWalk:
    """Walks a node along the annotations of what it describes, calling nothing."""

    def __init__(self, *, allow: Sequence[str] | None) -> None:
        self._allow = allow

    def node(self, node: Mapping[str, Any], path: str, *, extra: Mapping[str, Any] | None = None) -> Any:
        given = {key: value for key, value in node.items() if key not in _NODE_KEYS}
        is_partial = self.value(bool, node.get("_partial_", False), f"{path}._partial_")
        target = located(node["_target_"], path=f"{path}._target_", allow=self._allow)
        for key in given:
            if key.startswith("_") and key not in signatures.keywords(target):
                raise ReverieError(
                    f"`{path}.{key}` is not supported: give keyword arguments, `_target_` and `_partial_`"
                )
        return self.made(target, given, path, is_partial=is_partial, extra=extra)

    def made(
        self,
        target: Callable[..., Any],
        given: Mapping[str, Any],
        path: str,
        *,
        is_partial: bool = False,
        extra: Mapping[str, Any] | None = None,
    ) -> Any:
        """What becomes of ``target`` with the given values, each fitted to its annotation, and ``extra`` as it is."""
        filled = extra or {}
        valid = [name for name in signatures.keywords(target) if name not in filled]
        for key in given:
            if key in filled:
                raise ReverieError(f"`{joined(path, key)}` is filled in by Reverie: remove it from the config")
            if key not in valid and not signatures.takes_any_keyword(target):
                raise unknown_key(key, valid, path=path)
        hints = signatures.hints(target)
        for name in signatures.required(target):
            if not is_partial and name not in given and name not in filled:
                wanted = signatures.description(hints[name]) if name in hints else "a value"
                raise ReverieError(f"`{joined(path, name)}` is missing: it must be {wanted}")
        fitted = {key: self.value(hints.get(key, Any), value, joined(path, key)) for key, value in given.items()}
        return self._called(target, {**fitted, **filled}, path, is_partial=is_partial)

    def _called(self, target: Callable[..., Any], arguments: dict[str, Any], path: str, *, is_partial: bool) -> Any:
        """The one step in which the walks differ; this one leaves it out."""
        return arguments

    def value(self, annotation: Any, value: Any, path: str) -> Any:
        """``value`` as ``annotation`` wants it (a list becomes a tuple, text a Path), or a ReverieError."""
        if is_node(value):
            return self.node(value, path)
        if signatures.is_open(annotation):
            return self._open(value, path)
        if signatures.is_union(annotation):
            return self._union(annotation, value, path)
        if isinstance(value, Mapping) and signatures.is_dataclass_type(annotation):
            return self.made(annotation, value, path)
        if isinstance(value, Mapping) and signatures.is_mapping(annotation):
            kind = (get_args(annotation) or (Any, Any))[1]
            return {key: self.value(kind, item, joined(path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)) and signatures.is_sequence(annotation):
            return self._sequence(annotation, value, path)
        return _scalar(annotation, value, path)

    def _open(self, value: Any, path: str) -> Any:
        if isinstance(value, Mapping):
            return {key: self.value(Any, item, joined(path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [self.value(Any, item, joined(path, str(index))) for index, item in enumerate(value)]
        return value

    def _union(self, annotation: Any, value: Any, path: str) -> Any:
        members = get_args(annotation)
        errors: list[ReverieError] = []
        for member in members:
            try:
                return self.value(member, value, path)
            except ReverieError as error:
                errors.append(error)
        structured = [isinstance(value, (Mapping, list)) and not _is_plain(member) for member in members]
        if structured.count(True) == 1:  # only one member can be meant: its own complaint says more
            raise errors[structured.index(True)]
        raise mismatch(annotation, value, path)

    def _sequence(self, annotation: Any, value: Sequence[Any], path: str) -> Any:
        kinds = signatures.element_types(annotation, len(value))
        if kinds is None:
            raise mismatch(annotation, value, path)
        items = [
            self.value(kind, item, joined(path, str(index)))
            for index, (kind, item) in enumerate(zip(kinds, value, strict=True))
        ]
        kind = get_origin(annotation) or annotation
        return kind(items) if kind in (tuple, set, frozenset) else items


class BuildWalk(CheckWalk):
    """The same walk, which makes what it has checked."""

    def _called(self, target: Callable[..., Any], arguments: dict[str, Any], path: str, *, is_partial: bool) -> Any:
        if is_partial:
            return functools.partial(target, **arguments)
        if not signatures.is_dataclass_type(target):
            return target(**arguments)
        try:
            return target(**arguments)
        except ValueError as error:
            raise ReverieError(f"`{path}`: {error}") from error


def made_from_node(node: Mapping[str, Any], *, path: str, allow: Sequence[str] | None) -> Any:
    """What a checked node describes. Worker processes call this, by name."""
    return BuildWalk(allow=allow).node(node, path)


def _scalar(annotation: Any, value: Any, path: str) -> Any:
    if not _fits(annotation, value):
        raise mismatch(annotation, value, path)
    return annotation(value) if annotation in (int, float, Path) else value


def _fits(annotation: Any, value: Any) -> bool:
    if get_origin(annotation) is Literal:
        return any(type(value) is type(choice) and value == choice for choice in get_args(annotation))
    if annotation in (int, float):  # an int is a number too; a bool is neither, though Python says so
        is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())  # as in 1e6
        return (is_whole or isinstance(value, annotation)) and not isinstance(value, bool)
    if annotation is Path:
        return isinstance(value, (str, Path))
    if annotation is None:
        return value is None
    if signatures.is_sequence(annotation) and isinstance(value, str):  # text is a Sequence of itself
        return False
    kind = get_origin(annotation) or annotation
    return isinstance(kind, type) and not _is_protocol(kind) and isinstance(value, kind)


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))  # isinstance would raise unless it is runtime-checkable


def _is_plain(annotation: Any) -> bool:
    return annotation in (int, float, bool, str, Path, type(None)) or get_origin(annotation) is Literal


def is_node(value: Any) -> bool:
    return isinstance(value, Mapping) and "_target_" in value


def mismatch(annotation: Any, value: Any, path: str) -> ReverieError:
    return ReverieError(f"`{path}` must be {signatures.description(annotation)}, got {shown(value)}")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
